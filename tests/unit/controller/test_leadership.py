"""Several controllers on one store: one plans, another takes over, and who lost the lead changes nothing."""

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from qlm.broker import codec
from qlm.broker.sqlite.broker import SqliteQueues
from qlm.broker.sqlite.file import SqliteFile
from qlm.cli.runtime.wiring import group_ids
from qlm.controller.core.decide import ControllerSettings
from qlm.controller.core.history.codec import HISTORY
from qlm.controller.core.history.history import remembered
from qlm.controller.shell.leadership import RENEWALS, LeadershipLoop
from qlm.controller.shell.loop import ControllerLoop
from qlm.controller.shell.metrics import ControllerMetrics
from qlm.domain.errors import NotLeadingError, StoreUnavailableError
from qlm.domain.fleet import EngineCapacity, EngineState, InstanceStatus
from qlm.domain.ids import ControllerId, GroupId, InstanceId, SessionId
from qlm.domain.lease import Holder
from qlm.domain.ports.published import PublishedKind, operation
from qlm.domain.ports.store import ControllerStore
from qlm.domain.request import RequestState
from qlm.domain.shell.faults import FaultLog
from qlm.domain.view import RequestFilter
from qlm.planner.baselines.edf import plan_edf
from qlm.rct_estimator.forecast_errors import Turn
from qlm.store.embedded.memory import MemoryStore
from support.flaky import Faults, flaky, until
from support.plant import M, N, known_fleet
from support.requests import a_request

GPU_0 = Holder(InstanceId("gpu-0"), SessionId("a"))
LOST = Holder(InstanceId("gpu-9"), SessionId("a"))
ONE, OTHER = ControllerId("one"), ControllerId("other")
TTL_S = 3.5
LONG_S = 3600.0


class SettableClock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.time_ns = 1_700_000_000_000_000_000

    def now_ns(self) -> int:
        return self.time_ns

    def advance(self, seconds: float) -> None:
        self.time_ns += round(seconds * 1e9)


@dataclass
class Bench:
    """A store whose time stands still, and what several controllers on it need."""

    queues: SqliteQueues
    clock: SettableClock = field(default_factory=SettableClock)

    def __post_init__(self) -> None:
        self.store = MemoryStore(self.clock)
        self.broker = self.queues.broker()

    def controller(
        self,
        name: ControllerId,
        store: ControllerStore | None = None,
        *,
        quiet_s: float = 0.02,
        ttl_s: float = TTL_S,
        metrics: ControllerMetrics | None = None,
    ) -> ControllerLoop:
        return ControllerLoop(
            name=name,
            store=store or self.store,
            broker=self.queues.broker(),
            clock=self.clock,
            fleet=known_fleet(),
            settings=ControllerSettings(quiet_s=quiet_s, lead_ttl_s=ttl_s),
            planner=plan_edf,
            new_group_id=group_ids(),
            metrics=metrics,
        )

    async def beat(self, holder: Holder = GPU_0) -> None:
        engines = ((M, EngineState.AWAKE),)
        capacity = EngineCapacity(kv_tokens=4096, block_tokens=16, seqs_max=4, context_tokens=4096)
        said = InstanceStatus(
            holder=holder,
            accelerator="A10",
            models=(M, N),
            active_model=M,
            engines=engines,
            capacity=capacity,
        )
        await self.store.heartbeat(said, LONG_S)

    async def accept(self, id: str) -> None:
        request = a_request(id, arrival_ns=self.clock.time_ns)
        await self.broker.publish(request.cls.queue, codec.encode_request(request))
        await self.store.enqueue(request.metadata())

    async def planned(self) -> list[GroupId]:
        queue = await self.store.virtual_queue(GPU_0.instance)
        return [group.id for group in queue.groups if group.remaining]

    async def who_leads(self) -> ControllerId | None:
        led = await self.store.leader()
        return None if led is None else led.leader

    async def all_there_is(self) -> list[Any]:
        records = await self.store.records(RequestFilter())
        kept = (
            await self.store.published(PublishedKind.PLAN),
            await self.store.published(PublishedKind.SIGNAL),
        )
        return [await self.store.view(), list(records), kept, await self.store.leader()]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    file = await SqliteFile.open(tmp_path / "queue.db")
    queues = await SqliteQueues.open(file)
    yield Bench(queues)
    await queues.close()
    await file.close()


@asynccontextmanager
async def running(*loops: ControllerLoop) -> AsyncIterator[list["asyncio.Task[None]"]]:
    tasks = [asyncio.create_task(loop.run()) for loop in loops]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Counting(Faults):
    """No faults, but a count of what was asked, and of what iterators have brought."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def before(self, method: str) -> None:
        self.calls[method] += 1

    def has_heard(self, wakeups: int) -> bool:
        return self.calls["wakeups"] >= wakeups


class Moving(Faults):
    """No faults, but time that passes when the lead was asked for."""

    def __init__(self, clock: SettableClock, step_s: float) -> None:
        super().__init__()
        self.renewals = 0
        self._clock = clock
        self._step_s = step_s

    def after(self, method: str) -> None:
        if method == "acquire_leadership":
            self.renewals += 1
            self._clock.advance(self._step_s)


class Pausing:
    """A store before whose method its caller is stopped, once, while `meanwhile` happens to the others."""

    def __init__(
        self, real: ControllerStore, method: str, meanwhile: Callable[[], Awaitable[object]]
    ) -> None:
        self._real = real
        self._method = method
        self._meanwhile = meanwhile
        self.paused = False

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)
        if not inspect.iscoroutinefunction(real):
            return real

        async def call(*arguments: Any) -> Any:
            if operation(name, arguments) == self._method and not self.paused:
                self.paused = True
                await self._meanwhile()
            return await real(*arguments)

        return call


async def test_one_leads_and_the_other_changes_nothing(bench: Bench) -> None:
    one, other = bench.controller(ONE), bench.controller(OTHER)
    await bench.beat()
    await bench.accept("a")
    await one.run_once()
    before = await bench.all_there_is()
    await bench.accept("b")
    with pytest.raises(NotLeadingError):
        await other.run_once()
    assert await bench.who_leads() == ONE
    assert len(await bench.planned()) == 1
    await one.run_once()
    assert await bench.all_there_is() != before


async def test_a_lead_that_nobody_renews_goes_to_who_asks_next_under_a_larger_term(bench: Bench) -> None:
    one, other = (LeadershipLoop(bench.store, name, TTL_S, FaultLog()) for name in (ONE, OTHER))
    first = await one.term()
    bench.clock.advance(TTL_S - 0.001)
    with pytest.raises(NotLeadingError):
        await other.term()
    bench.clock.advance(0.001)
    assert await bench.who_leads() is None
    assert await other.term() > first
    assert (one.is_leader, other.is_leader) == (True, True), "who was asleep does not know yet"
    one.lost()
    with pytest.raises(NotLeadingError):
        await one.term()
    assert await bench.who_leads() == OTHER


async def test_the_same_one_leads_again_under_a_new_term_if_nobody_else_came(bench: Bench) -> None:
    loop = bench.controller(ONE)
    await bench.beat()
    await loop.run_once()
    led = await bench.store.leader()
    bench.clock.advance(TTL_S)
    await bench.accept("a")
    with pytest.raises(NotLeadingError):
        await loop.run_once()
    assert await bench.planned() == []
    async with running(loop):
        await until(bench.planned)
        again = await bench.store.leader()
        assert led is not None and again is not None
        assert (again.leader, again.term > led.term) == (ONE, True)


# In the order of a turn: the reconciler calls expire_leases first; apply is called only if something changed.
@pytest.mark.parametrize("method", ["view", "expire_leases", "apply", "publish_signal", "publish_plan"])
async def test_who_slept_through_its_lead_changes_nothing_wherever_it_was(bench: Bench, method: str) -> None:
    other = bench.controller(OTHER)
    left: list[Any] = []

    async def meanwhile() -> None:
        bench.clock.advance(TTL_S)
        await other.run_once()
        await bench.store.lease(a_request("lost").metadata(), LOST, None)
        await bench.accept("later")
        left.append(await bench.all_there_is())

    slept = Pausing(bench.store, method, meanwhile)
    one = bench.controller(ONE, cast(ControllerStore, slept))
    await bench.store.mark_indexed((await bench.store.acquire_leadership(OTHER, TTL_S)).term)
    bench.clock.advance(TTL_S)
    await bench.beat()
    await bench.accept("a")
    with pytest.raises(NotLeadingError):
        await one.run_once()
    assert slept.paused
    assert await bench.all_there_is() == left[0]
    assert await bench.who_leads() == OTHER
    record = await bench.store.record(a_request("lost").id)
    assert record is not None and record.state is RequestState.RUNNING


async def test_a_controller_that_lost_the_lead_asks_at_once(bench: Bench) -> None:
    """Not only when it would look again."""
    loop = bench.controller(ONE, quiet_s=LONG_S, ttl_s=LONG_S)
    await bench.beat()
    async with running(loop):
        await until(lambda: _leads(bench, ONE))
        bench.clock.advance(LONG_S)
        assert await bench.who_leads() is None
        await bench.accept("a")
        await until(lambda: _leads(bench, ONE))


async def test_the_lead_is_renewed_while_the_loop_runs(bench: Bench) -> None:
    """The store's time moves after each renewal, three times as far as an unrenewed lead lasts."""
    ttl_s = 0.08
    asked = Moving(bench.clock, ttl_s / RENEWALS)
    loop = bench.controller(ONE, flaky(bench.store, asked), quiet_s=LONG_S, ttl_s=ttl_s)
    async with running(loop):
        await until(lambda: asked.renewals > 3 * RENEWALS)
        led = await bench.store.leader()
        assert led is not None
        assert (led.leader, led.term.n) == (ONE, 1)


async def test_a_store_that_is_away_for_a_renewal_costs_nothing_but_that(bench: Bench) -> None:
    faults = Faults()
    loop = bench.controller(ONE, flaky(bench.store, faults), ttl_s=0.08)
    await bench.beat()
    async with running(loop):
        await until(lambda: _leads(bench, ONE))
        faults.fail(StoreUnavailableError("away"), "acquire_leadership")
        await until(lambda: faults.raised["acquire_leadership"] >= 2)
        faults.heal()
        await bench.accept("a")
        await until(bench.planned)
        led = await bench.store.leader()
        assert led is not None and led.term.n == 1


async def test_who_could_not_renew_for_long_enough_tells_that_it_does_not_lead(bench: Bench) -> None:
    """Another may lead by then, and then both would export the metrics of the whole cluster."""
    registry, faults = CollectorRegistry(), Faults()
    metrics = ControllerMetrics(registry, bench.clock.now_ns)
    loop = bench.controller(ONE, flaky(bench.store, faults), ttl_s=0.2, metrics=metrics)

    def shown(name: str, kind: str | None = None) -> float | None:
        return registry.get_sample_value(name, {} if kind is None else {"accelerator": kind})

    await bench.beat()
    async with running(loop):
        await until(lambda: shown("qlm_controller_leader") == 1)
        assert shown("qlm_controller_live_instances", "A10") == 1
        faults.fail(StoreUnavailableError("away"), "acquire_leadership", "expire", "view")
        await until(lambda: shown("qlm_controller_leader") == 0)
        assert shown("qlm_controller_live_instances", "A10") is None
        faults.heal()
        await until(lambda: shown("qlm_controller_leader") == 1)


async def _leads(bench: Bench, name: ControllerId) -> bool:
    return await bench.who_leads() == name


async def test_another_takes_over_when_the_leader_was_killed(bench: Bench) -> None:
    """One that is killed says nothing more to the store, and gives nothing back."""
    faults = Faults()
    one, other = bench.controller(ONE, flaky(bench.store, faults)), bench.controller(OTHER)
    await bench.beat()
    async with running(one, other) as (first, _):
        await until(lambda: _leads(bench, ONE))
        faults.fail(
            StoreUnavailableError("killed"),
            "resign",
            "acquire_leadership",
            "view",
            "apply",
            "expire",
            "expire_leases",
        )
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await bench.accept("a")
        assert await bench.who_leads() == ONE
        assert await bench.planned() == []
        bench.clock.advance(TTL_S)
        await until(bench.planned)
        assert await bench.who_leads() == OTHER


async def test_another_takes_over_at_once_when_the_leader_stops(bench: Bench) -> None:
    """A wakeup of the store announces it, before its own period and before the leadership lapses."""
    one = bench.controller(ONE, quiet_s=LONG_S, ttl_s=LONG_S)
    other = bench.controller(OTHER, quiet_s=LONG_S, ttl_s=LONG_S)
    await bench.beat()
    async with running(one) as (first,):
        await until(lambda: _leads(bench, ONE))
        async with running(other):
            await bench.accept("a")
            await until(bench.planned)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            await until(lambda: _leads(bench, OTHER))


async def test_requests_do_not_wake_who_stands_by(bench: Bench) -> None:
    led = await bench.store.acquire_leadership(ONE, LONG_S)
    counted = Counting()
    async with running(bench.controller(OTHER, flaky(bench.store, counted), quiet_s=LONG_S)):
        await until(lambda: counted.calls["view"] and counted.calls["wakeups"] == 2)  # subscribed
        for n in range(3):
            await bench.accept(f"r{n}")
            await until(partial(counted.has_heard, 3 + n))
        assert counted.calls["view"] == 1
        await bench.store.resign(led.term)
        await until(lambda: _leads(bench, OTHER))


async def test_who_stands_by_has_learned_what_there_is_when_it_takes_over(bench: Bench) -> None:
    led = await bench.store.acquire_leadership(ONE, LONG_S)
    counted = Counting()
    other = bench.controller(OTHER, flaky(bench.store, counted))
    await bench.beat()
    await bench.accept("a")
    seen_ns = bench.clock.time_ns
    async with running(other):
        await until(lambda: counted.calls["acquire_leadership"] >= 3)
    assert counted.calls["view"] == 1, "no look again while no time passes"
    bench.clock.advance(1.0)
    await bench.store.resign(led.term)
    warm, fresh = await other.run_once(), bench.controller(ONE)
    (arrivals,) = warm.estimator.arrivals.values()
    assert arrivals.seen_ns == seen_ns
    bench.clock.advance(TTL_S)
    (arrivals,) = (await fresh.run_once()).estimator.arrivals.values()
    assert arrivals.seen_ns == bench.clock.time_ns, "one that has seen nothing begins now"


async def test_who_takes_over_keeps_what_the_forecasts_of_the_leader_have_taught(bench: Bench) -> None:
    """It has begun with an older history, and a standby sees no forecast come out."""
    counted = Counting()
    one, other = bench.controller(ONE), bench.controller(OTHER, flaky(bench.store, counted))
    await bench.beat()
    led = (await one.run_once()).estimator
    async with running(other):
        await until(lambda: counted.calls["view"])
    waits = led.forecasts.waits.after(Turn.SWAP, 30.0, 120.0)
    taught = replace(led, forecasts=replace(led.forecasts, waits=waits))
    history = HISTORY.encode(remembered(taught, bench.clock.time_ns))
    await bench.store.publish(PublishedKind.HISTORY, history)
    bench.clock.advance(TTL_S)
    took_over = (await other.run_once()).estimator
    assert took_over.forecasts.waits.counts.sum() == pytest.approx(1.0, rel=0.01)


async def test_the_log_tells_who_leads_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    one, other = (LeadershipLoop(bench.store, name, TTL_S, FaultLog()) for name in (ONE, OTHER))
    with caplog.at_level(logging.INFO, "qlm.controller"):
        for _ in range(3):
            await one.term()
            with pytest.raises(NotLeadingError):
                await other.term()
        one.lost()
        await one.resign()
    assert [record.getMessage() for record in caplog.records] == [
        "the controller that plans is one (this one)",
        "the controller that plans is one; this one is a standby",
        "leadership lost: the latest plan is dropped",
    ]
    assert await bench.who_leads() == ONE, "a lead that was lost is not given back"
