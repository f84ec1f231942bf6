"""The control loop on a real store and queue: it plans when something happens, and outlives outages."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import orjson
import pytest

from qlm.broker import codec
from qlm.broker.sqlite.broker import SqliteQueues
from qlm.broker.sqlite.file import SqliteFile
from qlm.cli.runtime.clock import SystemClock
from qlm.cli.runtime.wiring import group_ids, new_controller_id
from qlm.controller.core.decide import ControllerSettings
from qlm.controller.shell import loop as loop_module
from qlm.controller.shell.loop import UNSERVED_NS, ControllerLoop
from qlm.domain.errors import BrokerUnavailableError, StoreUnavailableError
from qlm.domain.fleet import EngineCapacity, EngineState, InstanceStatus
from qlm.domain.formats.clusters import CLUSTERS, NO_CLUSTERS, Clusters
from qlm.domain.ids import GroupId, InstanceId, SessionId
from qlm.domain.lease import Holder
from qlm.domain.outcome import Outcome
from qlm.domain.ports.broker import Broker
from qlm.domain.ports.published import PublishedKind
from qlm.domain.request import Request
from qlm.domain.slo import OnMiss
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.policy.fallback import PlanTooSlowError
from qlm.planner.problem import Plan, Problem
from qlm.planner.published_plan import published_plan_from_plain
from qlm.store.embedded.memory import MemoryStore
from support.flaky import Faults, flaky, until
from support.plant import M, N, known_fleet
from support.requests import a_request

GPU_0 = Holder(InstanceId("gpu-0"), SessionId("a"))


def status(accelerator: str = "A10") -> InstanceStatus:
    return InstanceStatus(
        holder=GPU_0,
        accelerator=accelerator,
        models=(M, N),
        active_model=M,
        engines=((M, EngineState.AWAKE),),
        capacity=EngineCapacity(kv_tokens=4096, block_tokens=16, seqs_max=4, context_tokens=4096),
    )


class AheadClock(SystemClock):
    """The time of the system and some more."""

    ahead_s = 0.0

    def now_ns(self) -> int:
        return super().now_ns() + round(self.ahead_s * 1e9)


@dataclass
class Bench:
    """A controller loop on real parts.

    Its planner waits up to `patience_s` for the event loop, and notes if that was free meanwhile.
    """

    store: MemoryStore
    broker: Broker
    loop: ControllerLoop
    store_faults: Faults
    broker_faults: Faults
    loop_was_free: list[bool]
    patience_s: list[float]
    clock: AheadClock

    async def accept(self, *requests: Request) -> None:
        for request in requests:
            await self.broker.publish(request.cls.queue, codec.encode_request(request))
            await self.store.enqueue(request.metadata())

    async def planned(self) -> tuple[GroupId, ...]:
        """Groups with waiting requests on the virtual queue of the instance."""
        queue = await self.store.virtual_queue(GPU_0.instance)
        return tuple(group.id for group in queue.groups if group.remaining)


@pytest.fixture
def quiet_s() -> float:
    """How often the loop runs unasked; tests that depend on it say so."""
    return 0.5


@pytest.fixture
async def bench(tmp_path: Path, quiet_s: float) -> AsyncIterator[Bench]:
    file = await SqliteFile.open(tmp_path / "queue.db")
    queues = await SqliteQueues.open(file)
    clock = AheadClock()
    store, store_faults, broker_faults = MemoryStore(clock), Faults(), Faults()
    loop_was_free: list[bool] = []
    patience_s = [0.001]
    running = asyncio.get_running_loop()

    def planner(problem: Problem) -> Plan:
        answered = threading.Event()
        running.call_soon_threadsafe(answered.set)
        loop_was_free.append(answered.wait(patience_s[0]))
        return plan_edf(problem)

    loop = ControllerLoop(
        name=new_controller_id(),
        store=flaky(store, store_faults),
        broker=flaky(queues.broker(), broker_faults),
        clock=clock,
        fleet=known_fleet(),
        settings=ControllerSettings(quiet_s=quiet_s, clusters=True),
        planner=planner,
        new_group_id=group_ids(),
    )
    yield Bench(store, queues.broker(), loop, store_faults, broker_faults, loop_was_free, patience_s, clock)
    await queues.close()
    await file.close()


@asynccontextmanager
async def running(bench: Bench) -> AsyncIterator["asyncio.Task[None]"]:
    before = asyncio.all_tasks()
    task = asyncio.create_task(bench.loop.run())
    yield task
    assert not task.done(), "the loop ended by itself"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not asyncio.all_tasks() - before


async def test_one_turn_groups_and_places_what_waits(bench: Bench) -> None:
    await bench.store.heartbeat(status(), 60)
    await bench.accept(a_request("a"), a_request("b"))
    decision = await bench.loop.run_once()
    queue = await bench.store.virtual_queue(GPU_0.instance)
    assert [group.count for group in queue.groups] == [2]
    assert decision.plan.queues == {GPU_0.instance: (queue.groups[0].id,)}


async def test_a_turn_without_news_changes_nothing(bench: Bench) -> None:
    await bench.store.heartbeat(status(), 60)
    await bench.accept(a_request())
    first = await bench.loop.run_once()
    second = await bench.loop.run_once()
    assert second.changes == ()
    assert second.estimator is first.estimator, "what was learned is carried on"


async def test_a_turn_ends_what_waited_beyond_its_deadline_and_wanted_to_be_dropped(bench: Bench) -> None:
    await bench.accept(a_request("late", deadline_ms=1.0, arrival_ns=1, on_miss=OnMiss.DROP))
    await bench.loop.run_once()
    record = await bench.store.record(a_request("late").id)
    assert record is not None
    assert record.outcome is Outcome.EXPIRED


@pytest.mark.parametrize("quiet_s", [3600.0])
async def test_a_request_is_planned_because_it_came_not_because_time_passed(bench: Bench) -> None:
    await bench.store.heartbeat(status(), 60)
    async with running(bench):
        await until(lambda: bench.loop_was_free)
        await bench.accept(a_request())
        await until(bench.planned)


@pytest.mark.parametrize("quiet_s", [3600.0])
async def test_requests_that_join_a_planned_group_are_planned_once_and_soon(bench: Bench) -> None:
    await bench.store.heartbeat(status(), 60)
    async with running(bench):
        await bench.accept(a_request("first"))
        await until(bench.planned)
        planned = len(bench.loop_was_free)
        for n in range(20):
            await bench.store.enqueue(a_request(f"r{n}").metadata())
            await asyncio.sleep(0)
        await until(lambda: len(bench.loop_was_free) > planned)
        groups = (await bench.store.virtual_queue(GPU_0.instance)).groups
        assert sum(group.remaining for group in groups) == 21
        assert len(bench.loop_was_free) == planned + 1


@pytest.mark.parametrize("quiet_s", [0.02])
async def test_silence_is_looked_at_without_a_wakeup(bench: Bench) -> None:
    await bench.store.heartbeat(status(), 0.2)
    await bench.accept(a_request())
    async with running(bench):
        await until(bench.planned)
        await until(lambda: _none_planned(bench))


async def _none_planned(bench: Bench) -> bool:
    return not await bench.planned()


@pytest.mark.parametrize("quiet_s", [0.02])
@pytest.mark.parametrize("method", ["view", "expire", "expire_leases", "apply", "wakeups"])
async def test_the_loop_goes_on_after_a_store_that_was_away(
    bench: Bench, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qlm.controller.shell.reconciler.PERIOD_NS", 0)
    await bench.store.heartbeat(status(), 60)
    bench.store_faults.fail(StoreUnavailableError("away"), method)
    async with running(bench):
        await bench.accept(a_request())
        await until(lambda: bench.store_faults.raised[method] >= 2)
        bench.store_faults.heal()
        await until(bench.planned)


@pytest.mark.parametrize("quiet_s", [0.02])
@pytest.mark.parametrize("method", ["queues", "depth"])
async def test_the_loop_goes_on_after_a_broker_that_was_away(
    bench: Bench, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qlm.controller.shell.reconciler.PERIOD_NS", 0)
    await bench.store.heartbeat(status(), 60)
    bench.broker_faults.fail(BrokerUnavailableError("away"), method)
    async with running(bench):
        await bench.accept(a_request())
        await until(lambda: bench.broker_faults.raised[method] >= 2)
        bench.broker_faults.heal()
        await until(bench.planned)


async def test_what_was_applied_is_kept_for_those_who_look(bench: Bench) -> None:
    await bench.store.heartbeat(status(), 60)
    await bench.accept(a_request("a"))
    decision = await bench.loop.run_once()
    data = await bench.store.published(PublishedKind.PLAN)
    assert data is not None
    kept = published_plan_from_plain(orjson.loads(data))
    assert (kept.problem, kept.plan) == (decision.problem, decision.plan)
    assert kept.plan.queues == {GPU_0.instance: await bench.planned()}


async def test_a_plan_that_cannot_be_kept_is_applied_all_the_same(bench: Bench) -> None:
    await bench.store.heartbeat(status(), 60)
    bench.store_faults.fail(StoreUnavailableError("away"), "publish_plan")
    await bench.accept(a_request("a"))
    await bench.loop.run_once()
    assert bench.store_faults.raised["publish_plan"] == 1
    assert len(await bench.planned()) == 1
    assert await bench.store.published(PublishedKind.PLAN) is None


async def test_a_controller_goes_on_from_the_published_clusters(bench: Bench) -> None:
    clusters = Clusters(found={a_request().cls: (4096,)})
    await bench.store.publish(PublishedKind.CLUSTERS, CLUSTERS.encode(clusters))
    await bench.store.heartbeat(status(), 60)
    await bench.accept(a_request())
    assert (await bench.loop.run_once()).clusters.clusters == clusters
    data = await bench.store.published(PublishedKind.CLUSTERS)
    assert data is not None and CLUSTERS.decode(data) == clusters


@pytest.mark.parametrize(
    "data", [b"{", b"[]", b'{"version": 2}', b'{"version": 1, "fixed": {}, "found": [{}]}']
)
async def test_clusters_that_cannot_be_read_are_found_again(
    bench: Bench, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    await bench.store.publish(PublishedKind.CLUSTERS, data)
    await bench.store.heartbeat(status(), 60)
    await bench.accept(a_request())
    with caplog.at_level(logging.WARNING, "qlm.controller"):
        assert (await bench.loop.run_once()).clusters.clusters == NO_CLUSTERS
    assert "cannot read the published token clusters" in caplog.text
    assert len(await bench.planned()) == 1


async def test_an_unknown_accelerator_gets_no_work_and_is_named_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.store.heartbeat(status("TPU-9"), 60)
    await bench.accept(a_request())
    with caplog.at_level(logging.WARNING, "qlm.controller"):
        for _ in range(3):
            await bench.loop.run_once()
    assert await bench.planned() == ()
    assert [record.getMessage() for record in caplog.records] == [
        "instances with the accelerator 'TPU-9' get no work: this configuration does not have that kind"
    ]


async def test_a_model_that_nobody_serves_is_named_after_a_while_and_again_when_the_trouble_comes_back(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """At a start agents join last: a warning at once would be false each time."""

    def said(times: int) -> bool:
        return caplog.messages.count("no live instance serves m: its requests wait") == times

    await bench.accept(a_request(model="m"))
    with caplog.at_level(logging.WARNING, "qlm.controller"):
        await bench.loop.run_once()
        await bench.loop.run_once()
        assert said(0)
        async with running(bench):
            for times in (1, 2):
                bench.clock.ahead_s += UNSERVED_NS / 1e9
                await until(partial(said, times))
                await bench.store.heartbeat(status(), 60)
                await until(lambda: not bench.loop.unserved_since_ns)
                await bench.store.leave(GPU_0)
                await until(lambda: bench.loop.unserved_since_ns)
    assert said(2)


async def test_a_large_view_is_planned_off_the_loop_and_a_small_one_on_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "INLINE_GROUPS_MAX", 2)
    await bench.store.heartbeat(status(), 60)
    await bench.accept(*(a_request(f"r{n}", priority=n) for n in range(2)))
    await bench.loop.run_once()
    bench.patience_s[0] = 2.0
    await bench.accept(a_request("r2", priority=2))
    await bench.loop.run_once()
    await bench.loop.run_once()
    assert bench.loop_was_free == [False, True, True], "before it has groups, and with them"
    assert len(await bench.planned()) == 3


def compute(seconds: float) -> None:
    ends_s = time.thread_time() + seconds
    while time.thread_time() < ends_s:
        pass


@pytest.mark.parametrize("fails", [False, True])
async def test_a_pause_follows_what_decision_and_planner_compute_and_nothing_else(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    def computing(problem: Problem) -> Plan:
        compute(0.15)
        if fails:
            raise PlanTooSlowError("too slow")
        return plan_edf(problem)

    await bench.store.heartbeat(status(), 60)
    await bench.accept(a_request())
    monkeypatch.setattr(bench.loop._planner, "_planner", computing)
    other = threading.Thread(target=compute, args=(0.4,))
    other.start()
    await bench.loop.run_once()
    other.join()
    assert 0.15 <= bench.loop.decided_s < 0.4
