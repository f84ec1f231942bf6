import asyncio
from typing import Any

import pytest

from qlm.cli.config.default import emulated_config
from qlm.cli.config.listeners.access import exposures
from qlm.cli.runtime.backends import Backends
from qlm.cli.runtime.clock import SystemClock
from qlm.cli.runtime.listeners import announce
from qlm.domain.ports.broker import Broker
from qlm.domain.shell.tasks import end_tasks
from qlm.store.embedded.memory import MemoryStore
from support.gateway import until


async def never_opened() -> Broker:
    raise AssertionError("the announcement needs no broker")


def warnings(**sections: Any) -> list[str]:
    return list(exposures(emulated_config(sections)))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_listeners_on_loopback_are_no_reason_to_warn(host: str) -> None:
    assert warnings(http={"host": host}, grpc={"host": host}) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "qlm.example.com"])
def test_each_listener_beyond_loopback_is_named_with_the_remedy(host: str) -> None:
    http, grpc = warnings(http={"host": host}, grpc={"host": host, "port": 8123})
    assert f"HTTP on {host}:8000" in http and f"gRPC on {host}:8123" in grpc
    assert all("http.behind_proxy: true" in each for each in (http, grpc))
    assert len(warnings(http={"host": host}, grpc={"host": host, "port": 0})) == 1


def test_a_proxy_in_front_ends_the_warning() -> None:
    sections = {"http": {"host": "0.0.0.0", "behind_proxy": True}, "grpc": {"host": "0.0.0.0"}}
    assert warnings(**sections) == []


async def test_the_log_warns_when_the_gateway_starts(caplog: pytest.LogCaptureFixture) -> None:
    config = emulated_config({"http": {"host": "10.0.0.1"}})
    clock = SystemClock()
    store = MemoryStore(clock)
    backends = Backends(store, never_opened, embedded=True)
    announcing = asyncio.create_task(announce(config, backends, clock))
    await until(lambda: any(each.levelname == "WARNING" for each in caplog.records))
    await end_tasks([announcing])
    await store.close()
    assert "QLM checks no client" in caplog.text
