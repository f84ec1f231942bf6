"""Connections to the metrics and health of a process without a gateway, on a real listener."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from qlm.cli.config.default import emulated_config
from qlm.cli.config.observability import MonitorConfig
from qlm.cli.runtime.clock import SystemClock
from qlm.cli.runtime.health import Health
from qlm.cli.runtime.monitor import monitor
from qlm.cli.runtime.serving import monitoring
from qlm.cli.runtime.telemetry import Telemetry
from qlm.domain.shell.faults import FaultLog
from qlm.gateway.core.connection_limits import ConnectionLimits
from support.ports import free_port
from support.raw_http import HEALTH, PIECE, Connect, connecting

LONG_S = 3600.0
WITH_BODY = HEALTH[:-2] + b"content-type: application/json\r\ncontent-length: 100\r\n\r\nab"

Listen = Callable[..., Awaitable[str]]
"""Serves with limits, of which those that are not given cannot be passed within a test; returns the URL."""


@pytest.fixture
async def listen() -> AsyncIterator[Listen]:
    registry = CollectorRegistry()
    health = Health(registry, FaultLog())
    async with AsyncExitStack() as stack:

        async def listen(**given: Any) -> str:
            patient = {"headers_timeout_s": LONG_S, "body_timeout_s": LONG_S, "idle_timeout_s": LONG_S}
            limits = ConnectionLimits(**patient | {"shared_addresses": ()} | given)
            serving = monitor(MonitorConfig(port=free_port()), registry, health, dict, limits=limits)
            return f"http://127.0.0.1:{await stack.enter_async_context(serving)}"

        yield listen


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    async with connecting() as made:
        yield made


async def test_a_connection_without_a_request_is_closed(listen: Listen, connect: Connect) -> None:
    url = await listen(headers_timeout_s=0.3, idle_timeout_s=0.3)
    never, once = await connect(url), await connect(url)
    await once.works()
    await never.ended()
    await once.ended()


async def test_headers_have_a_time_and_a_size(listen: Listen, connect: Connect) -> None:
    url = await listen(headers_timeout_s=0.3)
    slow = await connect(url)
    slow.send(HEALTH[:-5])
    assert await slow.refusal() == (408, "headers_timeout")
    large = await connect(url)
    large.send(HEALTH[:-2] + b"x-long: " + PIECE + b"\r\n\r\n")
    assert await large.refusal() == (431, "headers_too_large")


async def test_a_body_has_a_time(listen: Listen, connect: Connect) -> None:
    client = await connect(await listen(body_timeout_s=0.3))
    client.send(WITH_BODY)
    assert (await client.answer())[0] == 200  # nobody reads the body
    await client.ended()


async def test_idle_callers_leave_room_for_others(
    listen: Listen, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    url = await listen(connections_max=4, per_address_max=3)
    idle = [await connect(url) for _ in range(3)]
    for client in idle:
        await client.works()
    with caplog.at_level(logging.WARNING):
        assert await (await connect(url)).refusal() == (503, "too_many_connections_of_address")
    assert "refused a client at 127.0.0.1" in caplog.text
    other = await connect(url, source="127.0.0.2")
    await other.works()
    await (await connect(url, source="127.0.0.2")).works()
    await idle[0].ended()  # the one that has waited longest


async def test_a_part_keeps_to_the_configured_limits() -> None:
    config = emulated_config({"monitor": {"port": free_port()}, "connections": {"url_bytes_max": 256}})
    telemetry = Telemetry(SystemClock(), controller=True, agents=False)
    async with monitoring(config, telemetry) as port, connecting() as connect:
        client = await connect(f"http://127.0.0.1:{port}")
        client.send(HEALTH.replace(b"healthz", b"healthz?" + b"u" * 300))
        assert await client.refusal() == (414, "url_too_long")
