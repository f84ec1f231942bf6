"""Webhooks that share a gateway, and gateways that share webhooks: none holds back those of another."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from qlm.domain.ports.outbox import EndEvent
from qlm.gateway.files.disk.storage import storage_in
from qlm.gateway.webhooks.endpoints import Webhooks
from qlm.gateway.webhooks.sender import FAILURES_MAX
from support.gateway import SystemClock, running_cluster, until
from support.webhook_world import World, added, counted, replace_limits, webhooks
from support.webhooks import receiving


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with running_cluster(tmp_path) as cluster, receiving() as receiver:
        yield World(cluster, storage_in(tmp_path / "files", SystemClock()), receiver)


def settled_at(world: World, monkeypatch: pytest.MonkeyPatch) -> Sequence[int | None]:
    """Return the times at which events are due again, as they are settled."""
    times: list[int | None] = []
    settle = world.cluster.store.settle_end

    async def noted(event: EndEvent, again_ns: int | None) -> bool:
        times.append(again_ns)
        return await settle(event, again_ns)

    monkeypatch.setattr(world.cluster.store, "settle_end", noted)
    return times


def of_tenant(hooks: Webhooks, *tenants: str) -> Webhooks:
    """Return endpoints, each of which gets the events of one tenant."""
    pairs = zip(hooks.endpoints, tenants, strict=True)
    return replace(hooks, endpoints=[replace(each, tenants=frozenset((one,))) for each, one in pairs])


async def test_a_gateway_leaves_an_event_that_it_knows_no_endpoint_of_to_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qlm.gateway.webhooks.dispatcher.UNKNOWN_NS", 10_000_000)
    settled = settled_at(world, monkeypatch)
    hooks = webhooks(world.receiver.url)
    await world.gateway(of_tenant(hooks, "another"))
    await world.cluster.store.add_end(added(1))
    await until(lambda: settled)
    await world.gateway(hooks)
    await world.all_sent()
    assert len(world.receiver.events) == 1


async def test_an_event_that_no_endpoint_wants_is_dropped_in_the_end(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("qlm.gateway.webhooks.dispatcher.UNKNOWN_NS", 10_000_000)
    hooks = webhooks(world.receiver.url, limits=replace_limits(retry_for_s=0.3))
    await world.gateway(of_tenant(hooks, "another"))
    await world.cluster.store.add_end(added(1))
    await world.all_sent()
    assert "is dropped: no endpoint here wants it" in caplog.text


async def test_an_endpoint_that_is_spared_is_due_after_the_pause_and_has_not_failed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qlm.gateway.webhooks.sender.PAUSE_NS", 300_000_000)
    receiver = world.receiver
    answers: list[int] = []

    async def broken_at_first() -> web.StreamResponse:
        answers.append(500 if len(answers) < FAILURES_MAX else 204)
        return web.Response(status=answers[-1])

    receiver.answer = broken_at_first
    await world.gateway(webhooks(receiver.url, limits=replace_limits(concurrent_max=1)))
    for n in range(FAILURES_MAX + 3):
        await world.cluster.store.add_end(added(n))
    await world.all_sent()
    assert answers.count(204) == FAILURES_MAX + 3
    assert await counted(world, 'attempts_total{endpoint="hook-0",result="failed"}', float(FAILURES_MAX))


async def test_a_name_whose_look_up_hangs_holds_back_nothing_else(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up, go, hanging = socket.getaddrinfo, threading.Event(), threading.Semaphore(0)

    def hangs(host: str, *rest: Any, **more: Any) -> Any:
        if host == "hangs.example":
            hanging.release()
            go.wait(60)
            raise socket.gaierror(socket.EAI_AGAIN, "it hangs")
        return look_up(host, *rest, **more)

    monkeypatch.setattr("socket.getaddrinfo", hangs)
    by_name = world.receiver.url.replace("127.0.0.1", "localhost")
    hooks = webhooks("http://hangs.example/x", by_name, limits=replace_limits(timeout_s=60))
    threads = ThreadPoolExecutor(2)
    asyncio.get_running_loop().set_default_executor(threads)
    try:
        await world.gateway(of_tenant(hooks, "a", "b"))
        for n in range(8):
            await world.cluster.store.add_end(added(n))
        await until(lambda: hanging.acquire(blocking=False))
        await world.cluster.store.add_end(added(1, "b"))
        await until(lambda: world.receiver.events)
        await asyncio.wait_for(asyncio.to_thread(lambda: None), 10)
    finally:
        go.set()


async def test_a_slow_endpoint_does_not_hold_back_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qlm.gateway.webhooks.backoff.SPARE_FIRST_S", 0.01)
    go = asyncio.Event()
    async with receiving() as slow:

        async def late() -> web.StreamResponse:
            await go.wait()
            return web.Response(status=204)

        slow.answer = late
        limits = replace_limits(concurrent_max=4, timeout_s=60)
        await world.gateway(of_tenant(webhooks(slow.url, world.receiver.url, limits=limits), "a", "b"))
        for n in range(8):
            await world.cluster.store.add_end(added(n))
        await until(lambda: len(slow.events) >= 2)
        await world.cluster.store.add_end(added(1, "b"))
        await until(lambda: world.receiver.events)
        assert len(slow.events) == 2
        go.set()
        await world.all_sent()
        assert len(slow.events) == 8
