"""Placements have a pace of their own: their time delays no plan, and that of many models takes a thread."""

import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qlm.broker import codec
from qlm.broker.sqlite.broker import SqliteQueues
from qlm.broker.sqlite.file import SqliteFile
from qlm.cli.runtime.clock import SystemClock
from qlm.cli.runtime.wiring import group_ids, new_controller_id
from qlm.controller.core.decide import ControllerSettings
from qlm.controller.core.estimating.state import EstimatorState
from qlm.controller.core.fleet import Fleet
from qlm.controller.shell import loop as loop_module
from qlm.controller.shell import timed_placer
from qlm.controller.shell.loop import ControllerLoop
from qlm.domain.view import ClusterView
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.placement.policy import PlacementState
from qlm.store.embedded.memory import MemoryStore
from support.plant import known_fleet
from support.requests import a_request


@pytest.fixture
async def loop(tmp_path: Path) -> AsyncIterator[ControllerLoop]:
    file = await SqliteFile.open(tmp_path / "queue.db")
    queues, clock = await SqliteQueues.open(file), SystemClock()
    store, request = MemoryStore(clock), a_request()
    await queues.broker().publish(request.cls.queue, codec.encode_request(request))
    await store.enqueue(request.metadata())
    yield ControllerLoop(
        name=new_controller_id(),
        store=store,
        broker=queues.broker(),
        clock=clock,
        fleet=known_fleet(),
        settings=ControllerSettings(places=True),
        planner=plan_edf,
        new_group_id=group_ids(),
    )
    await queues.close()
    await file.close()


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Make each placement take 0.2 s of the processor; return the threads of all."""
    found: list[threading.Thread] = []

    def computing(
        state: PlacementState, view: ClusterView, estimator: EstimatorState, fleet: Fleet, now_ns: int
    ) -> PlacementState:
        found.append(threading.current_thread())
        ends_s = time.thread_time() + 0.2
        while time.thread_time() < ends_s:
            pass
        return state

    monkeypatch.setattr(timed_placer, "update_placement", computing)
    return found


async def test_the_time_of_a_placement_is_no_reason_for_a_pause(
    loop: ControllerLoop, threads: list[threading.Thread]
) -> None:
    await loop.run_once()
    assert len(threads) == 1
    assert loop.decided_s < 0.2


async def test_a_placement_of_many_models_is_computed_beside_the_event_loop(
    loop: ControllerLoop, threads: list[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    await loop.run_once()
    await loop.run_once()
    monkeypatch.setattr(loop_module, "INLINE_PAIRS_MAX", -1)
    await loop.run_once()
    assert [thread is threading.main_thread() for thread in threads] == [True, True, False]
