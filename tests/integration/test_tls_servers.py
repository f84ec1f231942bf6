"""RabbitMQ and Redis over TLS, vouched for by a private authority that SSL_CERT_FILE names."""

import contextlib
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qlm.broker.rabbitmq.broker import RabbitBroker, RabbitSettings
from qlm.domain.errors import BrokerUnavailableError, StoreUnavailableError
from qlm.domain.ids import QueueName
from qlm.store.redis.store import RedisStore
from support.certificates import certificate
from support.ports import free_port
from support.process import ServerProcess
from support.rabbitmq import RabbitMQ
from support.redis import RedisServer

pytestmark = pytest.mark.servers


class SystemClock:
    def now_ns(self) -> int:
        return time.time_ns()


async def ask(url: str) -> None:
    store = RedisStore(url, SystemClock())
    try:
        await store.incarnation()
    finally:
        await store.close()


async def connect(url: str) -> None:
    broker = await RabbitBroker.connect(RabbitSettings(url=url), random.Random(0))
    try:
        await broker.depth(QueueName("qlm.ingress"))
    finally:
        await broker.close()


@contextlib.contextmanager
def redis_over_tls(folder: Path, cert: Path, key: Path) -> Iterator[str]:
    """Run one, with a user of its own; give its address."""
    port = free_port()
    (folder / "users.acl").write_text("user qlm on >se/c@ret ~* &* +@all\nuser default off\n", "utf-8")
    argv = ["redis-server", "--port", "0", "--tls-port", str(port), "--bind", "127.0.0.1", "--save", ""]
    argv += ["--tls-cert-file", str(cert), "--tls-key-file", str(key), "--tls-ca-cert-file", str(cert)]
    argv += ["--tls-auth-clients", "no", "--aclfile", str(folder / "users.acl")]
    process = ServerProcess("redis-tls", argv, env=os.environ, folder=folder)
    process.start()
    try:
        process.wait_ready(lambda: "Ready to accept" in process.log_tail(), timeout_s=30)
        yield f"rediss://qlm:se%2Fc%40ret@localhost:{port}/0"
    finally:
        process.kill()


async def test_redis_is_reached_over_tls_as_a_named_user(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = certificate(tmp_path)
    with redis_over_tls(tmp_path, cert, key) as url:
        with pytest.raises(StoreUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
            await ask(url)
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        await ask(url)


async def test_rabbitmq_is_reached_over_tls(
    tmp_path: Path, rabbitmq: RabbitMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = certificate(tmp_path)
    node, port = RabbitMQ(tmp_path), free_port()
    options = {"cacertfile": cert, "certfile": cert, "keyfile": key, "verify": "verify_none"}
    settings = [f"listeners.ssl.default = 127.0.0.1:{port}"]
    settings += [f"ssl_options.{name} = {value}" for name, value in options.items()]
    with (tmp_path / "rabbitmq.conf").open("a") as file:
        file.write("\n".join(settings) + "\n")
    try:
        node.start()
        url = f"amqps://guest:guest@localhost:{port}/%2F"
        with pytest.raises(BrokerUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
            await connect(url)
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        await connect(url)
    finally:
        node.close()
