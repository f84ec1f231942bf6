"""Lines whose requests are in the queue while no gateway runs their batch."""

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from qlm.domain.outcome import Outcome
from qlm.domain.view import RequestFilter
from qlm.gateway.batches import runner
from support.batch_world import NAMES, World, names, running_world
from support.gateway import until


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    async with running_world(tmp_path, monkeypatch) as world:
        yield world


async def outcomes(world: World) -> Counter[Outcome | None]:
    """Count how requests have ended."""
    return Counter(each.outcome for each in await world.cluster.store.records(RequestFilter(limit=20)))


async def indexed(world: World, count: int) -> bool:
    return (await outcomes(world)).total() == count


async def test_queued_lines_of_a_batch_that_has_yielded_are_cancelled_with_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "BATCHES_MAX", 2)
    await world.cluster.agent.rest()
    yields = max(world.add("a") for _ in range(2))
    async with world.gateway():
        await until(lambda: indexed(world, 6))
        world.add("b")
        await until(lambda: indexed(world, 9))
        world.id = yields
        world.storage.batches.cancel("a", yields)
        batch = await world.ended()
        assert (batch.status, batch.state.completed, batch.state.failed) == ("cancelled", 0, 3)
        assert await outcomes(world) == {Outcome.CANCELLED: 3, None: 6}


async def test_answers_that_came_while_no_gateway_ran_their_batch_stay(world: World) -> None:
    world.cluster.agent.pause_at = 1
    id = world.add()
    async with world.gateway():
        await until(lambda: len(world.cluster.agent.leased) == len(NAMES))
    world.cluster.agent.go.set()
    await until(lambda: len(world.cluster.agent.ended) == len(NAMES))
    world.storage.batches.cancel("a", id)
    async with world.gateway():
        batch = await world.ended()
    assert (batch.status, batch.state.error_file_id) == ("cancelled", None)
    assert names(world.lines(batch.state.output_file_id)) == NAMES


async def test_a_line_that_was_never_queued_is_not_queued_to_end_it(world: World) -> None:
    """Its batch began, but was paused before any line was in the queue."""
    id = world.add()
    claim = world.storage.batches.claim(world.storage.batches.open_places()[id])
    assert claim is not None
    claim.note(replace(claim.state, status="in_progress", total=3, started_s=1))
    claim.close()
    claim.release()
    world.storage.batches.cancel("a", id)
    async with world.gateway():
        batch = await world.ended()
    assert (batch.status, batch.state.failed) == ("cancelled", 3)
    assert await outcomes(world) == {}
