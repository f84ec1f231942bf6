"""Two deployments of one name on one RabbitMQ or one Redis: the second refuses to start."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pika
import pytest
import redis
import yaml
from click.testing import CliRunner

from qlm.broker.topology import DEPLOYMENT, queue_in
from qlm.cli.config.settings import Config
from qlm.cli.deployment.membership import Servers
from qlm.cli.main import main
from qlm.cli.runtime.backends import open_backends, open_servers
from qlm.cli.runtime.clock import SystemClock
from qlm.domain.errors import DeploymentTakenError
from support.cluster_load import until
from support.ports import free_port
from support.qlm_process import QlmProcess, emulated, serving
from support.rabbitmq import RabbitMQ
from support.redis import RedisServer
from support.wire import Wire

pytestmark = pytest.mark.servers


@pytest.fixture
def name() -> str:
    return f"one-{secrets.token_hex(4)}"


@pytest.fixture
def raw(name: str, rabbitmq: RabbitMQ, redis_server: RedisServer) -> dict[str, Any]:
    """The configuration of a deployment."""
    return {
        **emulated("mistral-7b"),
        "broker": rabbitmq.url,
        "store": redis_server.url,
        "deployment_name": name,
    }


@pytest.fixture(scope="module")
def another_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"), appendonly=False)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="module")
def another_rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    node = RabbitMQ(tmp_path_factory.mktemp("rabbitmq"))
    try:
        node.start()
        yield node
    finally:
        node.close()


@asynccontextmanager
async def process(raw: dict[str, Any], **more: str) -> AsyncIterator[None]:
    """Start what every process starts with, and be alive meanwhile."""
    async with AsyncExitStack() as stack:
        await open_backends(Config.model_validate({**raw, **more}), SystemClock(), stack)
        yield


@asynccontextmanager
async def servers_of(raw: dict[str, Any]) -> AsyncIterator[Servers]:
    async with open_servers(Config.model_validate(raw), SystemClock()) as servers:
        yield servers


async def ids(servers: Servers) -> tuple[str | None, str | None]:
    broker, store = await servers.seen()
    return broker.id, store.id


async def until_marked(servers: Servers, id: str | None) -> None:
    async def marked() -> bool:
        return await ids(servers) == (id, id)

    await until(marked, f"both servers are of {id}", timeout_s=30)


def empty_redis(raw: dict[str, Any]) -> None:
    with redis.Redis.from_url(raw["store"]) as client:
        client.delete(*client.scan_iter(f"{raw['deployment_name']}:*"))


def empty_rabbitmq(raw: dict[str, Any]) -> None:
    with pika.BlockingConnection(pika.URLParameters(raw["broker"])) as connection:
        connection.channel().queue_delete(queue_in(raw["deployment_name"], DEPLOYMENT))


LOSSES = {"redis": (empty_redis,), "rabbitmq": (empty_rabbitmq,), "both": (empty_redis, empty_rabbitmq)}


async def test_another_redis_behind_one_rabbitmq_is_refused(
    raw: dict[str, Any], another_redis: RedisServer
) -> None:
    """Without this both accept requests and lose nearly all of them: their queues are the same."""
    async with process(raw):
        with pytest.raises(DeploymentTakenError, match="two deployments have the deployment_name") as refused:
            async with process(raw, store=another_redis.url):
                pass
        async with process(raw), servers_of(raw) as servers:
            (id, _) = await ids(servers)
    broker = f"amqp://127.0.0.1:{port(raw['broker'])}/"
    assert (
        f"RabbitMQ at {broker} is of the running deployment {id} with Redis at {raw['store']} and "
        f"Redis at {another_redis.url} is of none yet; "
    ) in str(refused.value)


async def test_another_rabbitmq_before_one_redis_is_refused(
    raw: dict[str, Any], another_rabbitmq: RabbitMQ
) -> None:
    async with process(raw):
        with pytest.raises(DeploymentTakenError, match="is of the running deployment"):
            async with process(raw, broker=another_rabbitmq.url):
                pass
        async with process(raw, broker=another_rabbitmq.url, deployment_name=f"{raw['deployment_name']}-2"):
            pass


async def test_ten_processes_that_start_at_once_are_one_deployment(raw: dict[str, Any]) -> None:
    async with AsyncExitStack() as stack:
        began_s = asyncio.get_running_loop().time()
        await asyncio.gather(*(stack.enter_async_context(process(raw)) for _ in range(10)))
        took_s = asyncio.get_running_loop().time() - began_s
        servers = await stack.enter_async_context(servers_of(raw))
        broker, store = await ids(servers)
        assert broker == store is not None
    print(f"ten starts at once took {took_s:.2f} s")


@pytest.mark.parametrize("which", ["redis", "rabbitmq"])
async def test_an_emptied_server_is_marked_again_by_those_that_run(raw: dict[str, Any], which: str) -> None:
    async with process(raw), servers_of(raw) as servers:
        former, _ = await ids(servers)
        for lose in LOSSES[which]:
            lose(raw)
        async with process(raw):  # waits for the one that runs
            assert await ids(servers) == (former, former)


async def test_two_emptied_servers_are_marked_again_while_a_process_runs(raw: dict[str, Any]) -> None:
    async with process(raw), servers_of(raw) as servers:
        former, _ = await ids(servers)
        for lose in LOSSES["both"]:
            lose(raw)
        assert await ids(servers) != (former, former)
        await until_marked(servers, former)


@pytest.mark.parametrize("which", LOSSES)
async def test_a_deployment_starts_again_on_emptied_servers(raw: dict[str, Any], which: str) -> None:
    async with process(raw), servers_of(raw) as servers:
        former, _ = await ids(servers)
    for lose in LOSSES[which]:
        lose(raw)
    async with process(raw), process(raw), servers_of(raw) as servers:
        broker, store = await ids(servers)
    assert broker == store != former


async def test_connections_that_break_do_not_end_a_membership(raw: dict[str, Any]) -> None:
    async with Wire(port(raw["broker"])) as wire:
        through = {**raw, "broker": f"amqp://guest:guest@127.0.0.1:{wire.port}/%2F"}
        async with process(through), servers_of(raw) as servers:
            id, _ = await ids(servers)
            assert await servers.broker.has_members(str(id))
            wire.snap()

            async def lives() -> bool:
                return await servers.broker.has_members(str(id))

            await until(lives, "the process is a member again", timeout_s=30)


async def test_adopting_makes_one_deployment_of_servers_of_two(
    raw: dict[str, Any], another_redis: RedisServer, tmp_path: Path
) -> None:
    async with process(raw):
        pass
    empty_rabbitmq(raw)
    async with process(raw, store=another_redis.url):
        pass
    with pytest.raises(DeploymentTakenError, match="run qlm adopt"):
        async with process(raw):
            pass
    file = tmp_path / "qlm.yaml"
    file.write_text(yaml.safe_dump(raw))
    done = await asyncio.to_thread(CliRunner().invoke, main, ["adopt", "--config", str(file)])
    assert done.exit_code == 0, done.output
    async with process(raw), servers_of(raw) as servers:
        broker, store = await ids(servers)
        assert f"are of the deployment {broker}\n" in done.output
        assert broker == store


def port(url: str) -> int:
    found = urlsplit(url).port
    assert found is not None
    return found


def ended(config: dict[str, Any], folder: Path, *arguments: str) -> tuple[int | None, str]:
    """Run a part until it ends by itself; return its exit code and its log."""
    started = QlmProcess("refused", *arguments, config=config, folder=folder)
    started.start()
    try:
        until_s = time.monotonic() + 60
        while started.alive:
            assert time.monotonic() < until_s, started.log_file.read_text("utf-8")
            time.sleep(0.05)
        return started.exit_code, started.log_file.read_text("utf-8")
    finally:
        started.close()


@pytest.mark.parametrize("part", [("gateway",), ("controller",), ("agent", "i0"), ("serve",)])
async def test_a_part_of_a_second_deployment_ends_with_one_line(
    raw: dict[str, Any], another_redis: RedisServer, tmp_path: Path, part: tuple[str, ...]
) -> None:
    second = {
        **raw,
        "store": another_redis.url,
        "data_dir": str(tmp_path / "data"),
        "http": {"port": free_port()},
        "monitor": {"port": free_port()},
    }
    async with process(raw):
        code, log = await asyncio.to_thread(ended, second, tmp_path, *part)
    assert code == 1, log
    (line,) = [line for line in log.splitlines() if "two deployments" in line]
    assert line == log.splitlines()[-1]
    assert line.startswith(
        f"qlm: two deployments have the deployment_name '{raw['deployment_name']}': RabbitMQ at "
    )
    assert "Traceback" not in log


def test_a_second_serve_on_one_data_folder_ends_with_one_line(tmp_path: Path) -> None:
    with serving(emulated("mistral-7b")) as first:
        ports = {"http": {"port": free_port()}, "admin": {"port": free_port()}}
        second, pid = first.config | ports, first.pid
        code, log = ended(second, tmp_path, "serve")
    assert code == 1, log
    (line,) = [line for line in log.splitlines() if "in use" in line]
    assert line.endswith(f"is in use by process {pid}; only one process may open it")
    assert "Traceback" not in log
