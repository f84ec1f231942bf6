"""Lines of batches between their file and the queue: outages, pauses and ends that come in between."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from qlm.domain.errors import BrokerUnavailableError
from qlm.domain.outcome import Outcome
from qlm.domain.view import RequestFilter
from qlm.gateway.api.errors import ApiError, retry_headers, unavailable
from qlm.gateway.batches import batch_run
from qlm.gateway.batches.line_routes import LineRoutes, PreparedLine
from qlm.gateway.batches.line_run import PAUSE_MAX_S, pause_s
from qlm.gateway.files.disk.json_files import write_all
from qlm.gateway.http.files.line_routes import LINE_ROUTES
from qlm.gateway.sessions.gateway import Gateway
from qlm.gateway.sessions.idempotency import ATTEMPTS_MAX
from support.batch_world import ENDPOINT, NAMES, World, names, running_world
from support.gateway import MODELS, until
from support.opened_files import opened_below
from support.stored_batches import folder_of


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    async with running_world(tmp_path, monkeypatch) as world:
        yield world


async def test_lines_outlast_an_outage_of_the_queue_however_long(world: World) -> None:
    world.faults.fail(BrokerUnavailableError("connection refused"), "publish")
    world.add()
    async with world.gateway():
        await until(lambda: world.faults.raised["publish"] > 2 * len(NAMES) * ATTEMPTS_MAX)
        world.faults.heal()
        batch = await world.ended()
    assert (batch.status, batch.state.completed, batch.state.failed) == ("completed", 3, 0)


async def test_another_gateway_finds_the_request_that_a_line_has_after_an_outage(world: World) -> None:
    world.faults.fail(BrokerUnavailableError("connection refused"), "publish")
    world.add()
    await world.cluster.agent.rest()
    async with world.gateway():
        await until(lambda: world.faults.raised["publish"] > 2 * len(NAMES) * ATTEMPTS_MAX)
        world.faults.heal()
        await until(lambda: world.has_queued(3))
    async with world.gateway():
        world.cluster.agent.working.set()
        batch = await world.ended()
    assert names(world.lines(batch.state.output_file_id)) == NAMES
    assert sorted(Counter(each.id for each in world.cluster.agent.leased).values()) == [1, 1, 1]


async def test_lines_of_a_model_that_only_other_gateways_know_are_left_to_them(world: World) -> None:
    tried = 0

    async def counted(gateway: Gateway, plain: dict[str, Any], headers: Mapping[str, str]) -> PreparedLine:
        nonlocal tried
        tried += 1
        return await LINE_ROUTES[ENDPOINT](gateway, plain, headers)

    world.add()
    async with world.gateway({ENDPOINT: counted}, models=MODELS[1:]):
        await until(lambda: tried > 3 * len(NAMES))
    async with world.gateway():
        batch = await world.ended()
    assert (batch.status, batch.state.completed, batch.state.failed) == ("completed", 3, 0)


class SlowAdmission:
    """Admits lines of completions once it may, as a slow render tier does; the first ones at once."""

    def __init__(self, at_once: int = 0) -> None:
        self.at_once = at_once
        self.waiting = 0
        self.go = asyncio.Event()
        self.full = False

    @property
    def routes(self) -> LineRoutes:
        return {ENDPOINT: self._prepare}

    async def _prepare(
        self, gateway: Gateway, plain: dict[str, Any], headers: Mapping[str, str]
    ) -> PreparedLine:
        self.waiting += 1
        if self.full:
            raise ApiError(status=429, message="full", headers=retry_headers(0.01))
        if self.waiting > self.at_once:
            await self.go.wait()
        return await LINE_ROUTES[ENDPOINT](gateway, plain, headers)


async def test_lines_that_are_admitted_after_their_batch_was_cancelled_are_not_queued(world: World) -> None:
    admission = SlowAdmission()
    world.add()
    await world.cluster.agent.rest()
    async with world.gateway(admission.routes):
        await until(lambda: admission.waiting == len(NAMES))
        world.storage.batches.cancel("a", world.id)
        await until(world.slots.stopped.is_set)
        admission.go.set()
        batch = await world.ended()
    assert (batch.status, batch.state.failed) == ("cancelled", 3)
    assert await world.has_queued(0)


async def test_a_line_that_is_being_queued_when_its_batch_is_cancelled_is_cancelled(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add()
    await world.cluster.agent.rest()
    publish, go, published = world.cluster.broker.publish, asyncio.Event(), 0

    async def slowly(*given: Any) -> None:
        nonlocal published
        await publish(*given)
        published += 1
        await go.wait()

    monkeypatch.setattr(world.cluster.broker, "publish", slowly)
    async with world.gateway():
        await until(lambda: published == len(NAMES))
        world.storage.batches.cancel("a", world.id)
        await until(world.slots.stopped.is_set)
        go.set()
        batch = await world.ended()
    assert (batch.status, batch.state.failed) == ("cancelled", 3)
    records = await world.cluster.store.records(RequestFilter(limit=10))
    assert {each.outcome for each in records} == {Outcome.CANCELLED}


async def test_lines_that_were_refused_rest_with_their_batch(world: World) -> None:
    admission = SlowAdmission()
    admission.full = True
    admission.go.set()
    world.add()
    async with world.gateway(admission.routes):
        await until(lambda: admission.waiting > 2 * len(NAMES))
        world.storage.batches.pause("a", world.id)
        await until(lambda: opened_below(folder_of(world.storage, "")) == [])  # it is left
        admission.full = False
        assert world.cluster.agent.leased == []
        world.storage.batches.resume("a", world.id)
        batch = await world.ended()
    assert names(world.lines(batch.state.output_file_id)) == NAMES


async def test_lines_that_were_left_out_begin_once_their_batch_is_resumed(world: World) -> None:
    """One of its lines is in work all the time, so that the batch is not left."""
    admission = SlowAdmission(at_once=1)
    world.add()
    world.cluster.agent.pause_at = 1
    async with world.gateway(admission.routes):
        await until(lambda: len(world.cluster.agent.leased) == 1 and admission.waiting == len(NAMES))
        world.storage.batches.pause("a", world.id)
        await until(lambda: not world.slots.going_on.is_set())
        admission.go.set()
        await until(lambda: world.slots.wanted)  # for a line that was left out
        assert len(world.cluster.agent.leased) == 1
        world.storage.batches.resume("a", world.id)
        await until(lambda: len(world.cluster.agent.leased) == 3)
        world.cluster.agent.go.set()
        batch = await world.ended()
    assert names(world.lines(batch.state.output_file_id)) == NAMES


async def test_queued_lines_of_a_paused_batch_are_waited_for_after_an_outage_of_the_store(
    world: World,
) -> None:
    async def indexed() -> bool:
        return len(await world.cluster.store.records(RequestFilter(limit=10))) == len(NAMES)

    world.add()
    await world.cluster.agent.rest()
    async with world.gateway() as gateway:
        await until(indexed)
        world.storage.batches.pause("a", world.id)
        await until(lambda: not world.slots.going_on.is_set())
        gateway.hub.end_plain("connection refused")
        world.cluster.agent.working.set()
        batch = await world.ended()
    assert (batch.status, batch.state.completed) == ("completed", 3)


async def test_an_answer_that_is_being_written_when_time_is_over_is_the_only_end_of_its_line(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_run, "STOP_S", 0.05)
    write, reached, go = write_all, threading.Event(), threading.Event()

    def slowly(file: FileIO, line: bytes) -> None:
        if b'"status_code":200' in line:
            reached.set()
            assert go.wait(60)
        write(file, line)

    monkeypatch.setattr("qlm.gateway.files.disk.claim.write_all", slowly)
    world.add()
    async with world.gateway():
        await until(reached.is_set)
        world.storage.batches.cancel("a", world.id)
        await until(world.slots.stopped.is_set)
        asyncio.get_running_loop().call_later(4 * batch_run.STOP_S, go.set)
        batch = await world.ended()
    files = batch.state.output_file_id, batch.state.error_file_id
    assert names([line for id in files for line in world.lines(id)]) == NAMES


def test_pauses_double_while_a_part_is_away() -> None:
    away, full = unavailable("away", "broker_unavailable"), ApiError(status=429, message="full")
    assert [pause_s(away, n) for n in range(1, 8)] == [1, 2, 4, 8, 16, PAUSE_MAX_S, PAUSE_MAX_S]
    assert pause_s(away, 10_000) == PAUSE_MAX_S
    assert pause_s(full, 0) == 1
