"""The controller outlives its planner: a failure costs one plan, is told, and the next one is tried again."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from prometheus_client import CollectorRegistry

from qlm.broker import codec
from qlm.broker.sqlite.broker import SqliteQueues
from qlm.broker.sqlite.file import SqliteFile
from qlm.cli.runtime.clock import SystemClock
from qlm.cli.runtime.wiring import group_ids, new_controller_id
from qlm.controller.core.decide import ControllerSettings, Decision, Placer, Planner, decide
from qlm.controller.core.estimating.state import EstimatorState
from qlm.controller.core.fleet import Fleet
from qlm.controller.shell.loop import ControllerLoop
from qlm.controller.shell.metrics import ControllerMetrics
from qlm.controller.shell.time_limited_planner import TimeLimitedPlanner
from qlm.domain.fleet import EngineCapacity, EngineState, InstanceStatus
from qlm.domain.ids import InstanceId, SessionId
from qlm.domain.lease import Holder
from qlm.domain.plan_change import SetHomes
from qlm.domain.ports.published import PublishedKind
from qlm.domain.view import ClusterView
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.placement.policy import PlacementState
from qlm.planner.policy.fallback import FailureKind, PlanTooSlowError
from qlm.planner.problem import Plan, Problem
from qlm.planner.published_plan import published_plan_from_plain
from qlm.store.embedded.memory import MemoryStore
from support.flaky import until
from support.plant import M, N, known_fleet
from support.requests import a_request

GPU_0 = Holder(InstanceId("gpu-0"), SessionId("a"))
STATUS = InstanceStatus(
    holder=GPU_0,
    accelerator="A10",
    models=(M, N),
    active_model=M,
    engines=((M, EngineState.AWAKE),),
    capacity=EngineCapacity(kv_tokens=4096, block_tokens=16, seqs_max=4, context_tokens=4096),
)


class Failing:
    """Plans by EDF, named `usual`, and fails on order."""

    def __init__(self) -> None:
        self.fails = False
        self.calls = 0

    def __call__(self, problem: Problem) -> Plan:
        self.calls += 1
        if self.fails:
            raise IndexError("list index out of range")
        return replace(plan_edf(problem), method="usual")


class World:
    """A controller on a real store and queue."""

    def __init__(self, store: MemoryStore, queues: SqliteQueues) -> None:
        self.store, self._queues = store, queues
        self.registry = CollectorRegistry()
        self.planner = Failing()

    def loop(self, planner: Planner, settings: ControllerSettings) -> ControllerLoop:
        clock = SystemClock()
        return ControllerLoop(
            name=new_controller_id(),
            store=self.store,
            broker=self._queues.broker(),
            clock=clock,
            fleet=known_fleet(),
            settings=settings,
            planner=planner,
            new_group_id=group_ids(),
            metrics=ControllerMetrics(self.registry, clock.now_ns),
        )

    async def accept(self, id: str) -> None:
        request = a_request(id)
        await self._queues.broker().publish(request.cls.queue, codec.encode_request(request))
        await self.store.enqueue(request.metadata())

    async def placed(self) -> int:
        queue = await self.store.virtual_queue(GPU_0.instance)
        return sum(group.remaining for group in queue.groups)

    async def method(self) -> str:
        data = await self.store.published(PublishedKind.PLAN)
        return "" if data is None else published_plan_from_plain(orjson.loads(data)).plan.method

    def failures(self, kind: FailureKind) -> float | None:
        return self.registry.get_sample_value("qlm_controller_planner_failures_total", {"kind": kind})


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    file = await SqliteFile.open(tmp_path / "queue.db")
    queues = await SqliteQueues.open(file)
    world = World(MemoryStore(SystemClock()), queues)
    await world.store.heartbeat(STATUS, 60)
    yield world
    await queues.close()
    await file.close()


async def test_the_controller_outlives_its_planner_and_tries_it_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    loop = world.loop(world.planner, ControllerSettings(quiet_s=0.02))
    await world.accept("a")
    before = await loop.run_once()
    world.planner.fails = True
    task = asyncio.create_task(loop.run())
    with caplog.at_level(logging.WARNING, "qlm.controller"):
        await world.accept("b")
        await until(lambda: _is(world.placed(), 2))
        calls = world.planner.calls
        await until(lambda: world.planner.calls > calls + 2)
        await until(lambda: _starts(world.method(), "edf, since the planner failed (raised: IndexError"))
        failed = world.failures(FailureKind.RAISED)
        assert failed is not None and failed >= 3
        world.planner.fails = False
        await world.accept("c")
        await until(lambda: _is(world.placed(), 3))
        await until(lambda: _starts(world.method(), "usual"))
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert before.plan.method == "usual"
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "this plan is by earliest deadline first, since the planner failed: "
        "IndexError('list index out of range')"
    ], "once, however many plans failed"


async def _is(count: Awaitable[int], wanted: int) -> bool:
    return await count == wanted


async def _starts(text: Awaitable[str], wanted: str) -> bool:
    return (await text).startswith(wanted)


async def test_what_was_learned_is_kept_through_a_failure(world: World) -> None:
    loop = world.loop(world.planner, ControllerSettings())
    await world.accept("a")
    before = await loop.run_once()
    world.planner.fails = True
    failed = await loop.run_once()
    assert failed.estimator is before.estimator
    assert [failure.kind for failure in failed.failures] == [FailureKind.RAISED]


async def test_a_planner_that_never_ends_costs_its_time_and_is_asked_again_when_it_has_ended(
    world: World,
) -> None:
    release = threading.Event()
    calls: list[int] = []

    def planner(problem: Problem) -> Plan:
        calls.append(1)
        if len(calls) == 1:
            release.wait()
        return replace(plan_edf(problem), method="usual")

    loop = world.loop(planner, ControllerSettings(plan_time_max_s=0.05))
    await world.accept("a")
    first, second = await loop.run_once(), await loop.run_once()
    assert first.plan.method.startswith("edf, since the planner failed (slow: the planner took over 0.05 s")
    assert await world.placed() == 1
    assert [failure.kind for failure in second.failures] == [FailureKind.SLOW]
    assert len(calls) == 1, "it is not called while it runs: it keeps state"
    release.set()
    await until(lambda: _planned(loop))
    assert world.failures(FailureKind.SLOW)


async def _planned(loop: ControllerLoop) -> bool:
    return (await loop.run_once()).plan.method == "usual"


def test_an_error_of_the_planner_leaves_its_thread() -> None:
    problem = Problem(now_s=0.0, kinds={}, instances=(), groups=())
    failing = Failing()
    failing.fails = True
    with pytest.raises(IndexError):
        TimeLimitedPlanner(failing, 5.0)(problem)
    failing.fails = False
    assert TimeLimitedPlanner(failing, 5.0)(problem).method == "usual"
    assert issubclass(PlanTooSlowError, Exception)


async def test_a_controller_without_placement_takes_back_that_of_one_with_it(world: World) -> None:
    await world.accept("a")
    await world.store.apply([SetHomes(instance=GPU_0.instance, models=(M,))])
    await world.loop(plan_edf, ControllerSettings(places=False)).run_once()
    assert (await world.store.virtual_queue(GPU_0.instance)).homes == ()


async def test_a_placement_that_fails_leaves_the_last_one(world: World) -> None:
    await world.accept("a")
    view = await world.store.view()
    last = PlacementState(homes={GPU_0.instance: frozenset((M,))}, traffic_since_s=0.0)

    def failing(
        state: PlacementState, view: ClusterView, estimator: EstimatorState, fleet: Fleet, now_ns: int
    ) -> PlacementState:
        raise KeyError("an instance")

    def turn(placer: Placer) -> Decision:
        return decide(
            view,
            now_ns=SystemClock().now_ns(),
            fleet=known_fleet(),
            settings=ControllerSettings(places=True),
            planner=plan_edf,
            new_id=group_ids(),
            placement=last,
            placer=placer,
        )

    decision = turn(failing)
    assert decision.placement is last
    assert [each.kind for each in decision.failures] == [FailureKind.PLACEMENT]
    assert decision.plan.method == "edf"
    kept = turn(lambda state, *_: state)
    assert kept.failures == ()
