"""Webhooks of a gateway: ends of responses and batches come to receivers on loopback, at least once."""

import asyncio
import errno
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from aiohttp import web

from qlm.domain.outcome import Outcome
from qlm.domain.ports.outbox import EndEvent, OutboxState
from qlm.gateway.files.disk.storage import storage_in
from qlm.gateway.files.records import BatchState
from support.gateway import SystemClock, running_cluster, until
from support.stored_batches import add_batch
from support.webhook_world import ONE_ATTEMPT, World, added, counted, webhooks
from support.webhooks import receiving

ASKED: Final[dict[str, Any]] = {"model": "emulated", "input": "Hi", "background": True}
LINE: Final = (
    b'{"custom_id":"1","method":"POST","url":"/v1/completions","body":{"prompt":"x","max_tokens":2}}\n'
)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with running_cluster(tmp_path) as cluster, receiving() as receiver:
        yield World(cluster, storage_in(tmp_path / "files", SystemClock()), receiver)


async def test_each_end_of_a_response_in_the_background_is_reported(world: World) -> None:
    receiver, client = world.receiver, await world.gateway(webhooks(world.receiver.url))
    completed = await client.responses.create(**ASKED)
    await until(lambda: receiver.ids_of("response.completed") == [completed.id])
    incomplete = await client.responses.create(**ASKED, max_output_tokens=2)
    await until(lambda: receiver.ids_of("response.incomplete") == [incomplete.id])
    world.cluster.agent.fail_with = (Outcome.FAILED, "its engines kept failing")
    failed = await client.responses.create(**ASKED)
    await until(lambda: receiver.ids_of("response.failed") == [failed.id])
    await world.cluster.agent.rest()
    cancelled = await client.responses.create(**ASKED)
    await client.responses.cancel(cancelled.id)
    await until(lambda: receiver.ids_of("response.cancelled") == [cancelled.id])
    await world.all_sent()
    assert len({each["id"] for each in receiver.events}) == len(receiver.events) == 4
    for headers, event in zip(receiver.headers, receiver.events, strict=True):
        assert headers["webhook-id"] == event["id"]
        assert headers["Content-Type"] == "application/json"


async def test_an_answer_that_went_on_after_its_stop_string_is_reported_as_completed(world: World) -> None:
    agent = world.cluster.agent
    client = await world.gateway(webhooks(world.receiver.url))
    agent.answer, agent.deaf = lambda request: b"one two three " * 20, True
    made = await client.responses.create(**ASKED, extra_body={"stop": " three"}, max_output_tokens=100)
    await until(lambda: world.receiver.events)
    assert list(agent.ended.values()) == [Outcome.LENGTH]
    assert world.receiver.ids_of("response.completed") == [made.id]


async def test_a_response_whose_client_waits_is_not_reported(world: World) -> None:
    client = await world.gateway(webhooks(world.receiver.url))
    await client.responses.create(**ASKED | {"background": False})
    await client.chat.completions.create(model="emulated", messages=[{"role": "user", "content": "Hi"}])
    assert await world.cluster.store.outbox_state() == OutboxState(0, 0)


async def test_an_end_without_endpoints_leaves_nothing(world: World) -> None:
    hooks = webhooks(world.receiver.url)
    of_another = replace(hooks.endpoints[0], tenants=frozenset(("another",)))
    client = await world.gateway(replace(hooks, endpoints=[of_another]))
    made = await client.responses.create(**ASKED)

    async def ended() -> bool:
        return (await client.responses.retrieve(made.id)).status == "completed"

    await until(ended)
    assert await world.cluster.store.outbox_state() == OutboxState(0, 0)


async def test_the_end_of_a_batch_is_reported(world: World) -> None:
    receiver, client = world.receiver, await world.gateway(webhooks(world.receiver.url))
    completed, _ = add_batch(world.storage, LINE, endpoint="/v1/completions")
    await until(lambda: receiver.ids_of("batch.completed") == [completed.id])
    failed, _ = add_batch(world.storage, b"no line\n", endpoint="/v1/completions")
    await until(lambda: receiver.ids_of("batch.failed") == [failed.id])
    await until(lambda: world.storage.batches.open_places() == {})
    await world.all_sent()
    assert client is not None and len(receiver.events) == 2


async def test_the_end_of_a_batch_is_reported_though_its_gateway_died_before(world: World) -> None:
    spec, place = add_batch(world.storage, LINE, endpoint="/v1/completions")
    claim = world.storage.batches.claim(place)
    assert claim is not None
    assert claim.end(BatchState(status="cancelled"))
    claim.release()  # as the end of its process does
    await world.gateway(webhooks(world.receiver.url))
    await until(lambda: world.receiver.ids_of("batch.cancelled") == [spec.id])
    await until(lambda: world.storage.batches.open_places() == {})


async def test_the_end_of_a_batch_that_cannot_be_closed_is_reported_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches, tries, events = world.storage.batches, 0, list[EndEvent]()
    close, add_end = batches.close, world.cluster.store.add_end

    def close_late(place: str) -> None:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise OSError(errno.EROFS, "Read-only file system")
        close(place)

    async def noted(event: EndEvent) -> None:
        events.append(event)
        await add_end(event)

    monkeypatch.setattr(batches, "close", close_late)
    monkeypatch.setattr(world.cluster.store, "add_end", noted)
    spec, place = add_batch(world.storage, LINE, endpoint="/v1/completions")
    claim = batches.claim(place)
    assert claim is not None and claim.end(BatchState(status="cancelled"))
    claim.release()
    world.storage = replace(world.storage, pace=replace(world.storage.pace, scan_s=0.01, rest_s=0.02))
    await world.gateway(webhooks(world.receiver.url))
    await until(lambda: batches.open_places() == {})
    assert (tries, [each.subject for each in events]) == (4, [spec.id])


async def test_an_event_is_sent_until_it_is_taken_under_one_id(world: World) -> None:
    receiver = world.receiver

    async def third() -> web.StreamResponse:
        return web.Response(status=200 if len(receiver.events) >= 3 else 500, body=b"x" * 1_000_000)

    receiver.answer = third
    client = await world.gateway(webhooks(receiver.url))
    await client.responses.create(**ASKED)
    await until(lambda: len(receiver.events) >= 3)
    await world.all_sent()
    assert len(receiver.events) == 3 and len({each["webhook-id"] for each in receiver.headers}) == 1
    assert receiver.events[0] == receiver.events[2]


async def test_an_endpoint_that_took_an_event_gets_it_no_more_for_the_sake_of_another(world: World) -> None:
    async with receiving() as broken:

        async def second() -> web.StreamResponse:
            return web.Response(status=200 if len(broken.events) >= 2 else 503)

        broken.answer = second
        client = await world.gateway(webhooks(world.receiver.url, broken.url))
        await client.responses.create(**ASKED)
        await until(lambda: len(broken.events) >= 2)
        await world.all_sent()
    assert len(world.receiver.events) == 1


async def test_an_endpoint_whose_name_cannot_be_looked_up_leaves_others_alone(world: World) -> None:
    client = await world.gateway(webhooks(world.receiver.url, "http://a..b/x", limits=ONE_ATTEMPT))
    await client.responses.create(**ASKED)
    await until(lambda: counted(world, 'attempts_total{endpoint="hook-1",result="given_up"}', 1.0))
    await world.all_sent()
    assert len(world.receiver.events) == 1


async def test_several_gateways_send_an_event_once(world: World) -> None:
    hooks = webhooks(world.receiver.url)
    client, *_ = [await world.gateway(hooks) for _ in range(4)]
    made = [await client.responses.create(**ASKED) for _ in range(20)]
    await until(lambda: len(world.receiver.events) >= 20)
    await world.all_sent()
    assert sorted(world.receiver.ids_of("response.completed")) == sorted(each.id for each in made)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(world: World, status: int) -> None:
    receiver = world.receiver

    async def elsewhere() -> web.StreamResponse:
        return web.Response(status=status, headers={"location": f"{receiver.url}?followed"})

    receiver.answer = elsewhere
    client = await world.gateway(webhooks(receiver.url, limits=ONE_ATTEMPT))
    await client.responses.create(**ASKED)
    await until(lambda: bool(receiver.events))
    await world.all_sent()  # given up
    assert set(receiver.paths) == {"/hook"}


async def test_a_gone_endpoint_gets_no_second_attempt(world: World) -> None:
    async def gone() -> web.StreamResponse:
        return web.Response(status=410)

    world.receiver.answer = gone
    client = await world.gateway(webhooks(world.receiver.url))
    await client.responses.create(**ASKED)
    await until(lambda: bool(world.receiver.events))
    await world.all_sent()
    assert len(world.receiver.events) == 1


async def test_a_secret_in_the_url_is_not_logged(
    world: World, caplog: pytest.LogCaptureFixture, unused_tcp_port: int
) -> None:
    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"NO HTTP\r\n\r\n")
        writer.close()

    caplog.set_level(logging.INFO)
    server = await asyncio.start_server(garbage, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        urls = [f"http://127.0.0.1:{each}/private?key=private" for each in (port, unused_tcp_port)]
        await world.gateway(webhooks(*urls, limits=ONE_ATTEMPT))
        await world.cluster.store.add_end(added(1))
        await world.all_sent()
    assert "webhook hook-0 did not take" in caplog.text and "webhook hook-1 did not take" in caplog.text
    assert "Bad status line" in caplog.text and "ConnectionRefusedError" in caplog.text
    assert "private" not in caplog.text


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_nothing_is_sent_to_loopback_unless_it_is_allowed(world: World, host: str) -> None:
    url = world.receiver.url.replace("127.0.0.1", host)
    hooks = webhooks(url, networks=(), limits=ONE_ATTEMPT)
    client = await world.gateway(hooks)
    await client.responses.create(**ASKED)
    await until(lambda: counted(world, 'attempts_total{endpoint="hook-0",result="given_up"}', 1.0))
    await world.all_sent()
    assert world.receiver.events == []


async def test_an_event_that_no_one_takes_in_time_is_given_up(world: World) -> None:
    async def broken() -> web.StreamResponse:
        return web.Response(status=500)

    world.receiver.answer = broken
    await world.gateway(webhooks(world.receiver.url))
    late = EndEvent(subject="late", ended_as="stop", tenant="a", at_ns=1)
    await world.cluster.store.add_end(late)
    await until(lambda: counted(world, 'attempts_total{endpoint="hook-0",result="given_up"}', 1.0))
    await world.all_sent()
    assert world.receiver.events == []  # its time was over before the first attempt


async def test_operators_see_events_that_no_endpoint_gets(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qlm.gateway.webhooks.dispatcher.WATCH_S", 0.01)
    url = await world.cluster.gateway()
    async with httpx.AsyncClient(base_url=world.cluster.admin_urls[url]) as admin:
        assert (await admin.get("/admin/v1/store")).json()["warnings"] == []
        await world.cluster.store.add_end(EndEvent(subject="one", ended_as="stop", tenant="a", at_ns=1))
        (warning,) = (await admin.get("/admin/v1/store")).json()["warnings"]
    await until(lambda: counted(world, "events_waiting", 1.0))
    assert warning == "events of webhooks wait (1), and this gateway has no endpoints (webhooks.endpoints)"
