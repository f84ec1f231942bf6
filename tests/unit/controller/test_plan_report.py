"""The latest plan is kept in the store: when, how often, and what if it cannot be."""

import threading

import orjson
import pytest

from qlm.cli.runtime.clock import SystemClock
from qlm.controller.core.decide import ControllerSettings, Decision, decide
from qlm.controller.core.estimating.state import NOTHING_LEARNED
from qlm.controller.core.fleet import Fleet
from qlm.controller.shell import plan_report
from qlm.controller.shell.plan_report import PERIOD_NS, UNCHANGED_NS, PlanReporter
from qlm.domain.errors import StoreUnavailableError
from qlm.domain.ids import GroupId
from qlm.domain.ports.published import PublishedKind
from qlm.domain.shell.faults import FaultKind, FaultLog
from qlm.domain.view import ClusterView
from qlm.planner.admission_signal import signal_from_plain
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.published_plan import PublishedPlan, published_plan_from_plain
from qlm.store.embedded.memory import MemoryStore
from support.flaky import Faults, flaky
from support.plans import random_problem

START_NS = 1_700_000_000_123_456_789


def decision(seed: int, groups: int = 4) -> Decision:
    problem = random_problem(seed, groups=groups)
    return Decision(problem=problem, plan=plan_edf(problem), estimator=NOTHING_LEARNED)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(SystemClock())


async def kept(store: MemoryStore) -> PublishedPlan:
    data = await store.published(PublishedKind.PLAN)
    assert data is not None
    return published_plan_from_plain(orjson.loads(data))


async def test_what_was_decided_is_kept_with_its_moment(store: MemoryStore) -> None:
    made = decision(1)
    await PlanReporter(store, FaultLog()).publish(made, START_NS)
    assert await kept(store) == PublishedPlan(
        at_ms=START_NS // 1_000_000, problem=made.problem, plan=made.plan
    )  # fmt: skip


async def test_plans_are_kept_once_a_second_at_most(store: MemoryStore) -> None:
    reporter = PlanReporter(store, FaultLog())
    for passed_ns, expected in ((0, 1), (1, 1), (PERIOD_NS - 1, 1), (PERIOD_NS, 4), (PERIOD_NS + 1, 4)):
        await reporter.publish(decision(1 if passed_ns == 0 else 4), START_NS + passed_ns)
        assert (await kept(store)).problem == decision(expected).problem


async def test_plans_of_many_bytes_are_kept_less_often(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await PlanReporter(store, FaultLog()).publish(decision(2), START_NS)
    data = await store.published(PublishedKind.PLAN)
    assert data is not None
    reporter = PlanReporter(store, FaultLog())
    await reporter.publish(decision(1), START_NS)
    monkeypatch.setattr(plan_report, "BYTES_PER_S_MAX", len(data) / 3)
    for passed_s, expected in ((1, 2), (2, 2), (3.5, 2), (6, 3)):
        seed = expected if passed_s in (1, 6) else 4
        await reporter.publish(decision(seed), START_NS + round(passed_s * 1e9))
        assert (await kept(store)).problem == decision(expected).problem


async def test_a_plan_that_does_not_change_is_kept_now_and_then(store: MemoryStore) -> None:
    reporter, ages_ns = PlanReporter(store, FaultLog()), []
    for passed_ns in range(0, 2 * UNCHANGED_NS + 1, PERIOD_NS // 2):
        await reporter.publish(decision(1), START_NS + passed_ns)
        ages_ns.append(START_NS + passed_ns - (await kept(store)).at_ms * 1_000_000)
    assert (await kept(store)).at_ms == (START_NS + 2 * UNCHANGED_NS) // 1_000_000
    assert UNCHANGED_NS - PERIOD_NS <= max(ages_ns) < UNCHANGED_NS


async def test_a_clock_that_was_set_back_does_not_stop_it(store: MemoryStore) -> None:
    reporter = PlanReporter(store, FaultLog())
    await reporter.publish(decision(1), START_NS)
    await reporter.publish(decision(2), START_NS - 3600 * PERIOD_NS)
    assert (await kept(store)).problem == decision(2).problem


async def test_a_store_that_is_down_is_counted_and_tried_again(store: MemoryStore) -> None:
    faults, counted = Faults(), list[FaultKind]()
    reporter = PlanReporter(flaky(store, faults), FaultLog(counted.append))
    for n, away in enumerate((True, True, False, True)):
        if away:
            faults.fail(StoreUnavailableError("away"), "publish_plan")
        else:
            faults.heal()
        await reporter.publish(decision(1), START_NS + n * UNCHANGED_NS)
    assert faults.raised["publish_plan"] == 3
    assert (await kept(store)).at_ms == (START_NS + 2 * UNCHANGED_NS) // 1_000_000
    assert counted == [FaultKind.UNAVAILABLE] * 3


async def test_a_large_plan_is_encoded_on_a_thread(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    encoded = plan_report._encoded

    def noting(kept: PublishedPlan) -> bytes:
        threads.append(threading.get_ident())
        return encoded(kept)

    monkeypatch.setattr(plan_report, "INLINE_GROUPS_MAX", 5)
    monkeypatch.setattr(plan_report, "_encoded", noting)
    reporter = PlanReporter(store, FaultLog())
    await reporter.publish(decision(1, groups=5), START_NS)
    await reporter.publish(decision(1, groups=6), START_NS + PERIOD_NS)
    here = threading.get_ident()
    assert [thread == here for thread in threads] == [True, False]
    assert len((await kept(store)).problem.groups) == 6


async def test_the_forecast_of_a_decision_is_kept_with_its_plan(store: MemoryStore) -> None:
    reporter = PlanReporter(store, FaultLog())
    await reporter.publish(decision(1), START_NS)
    assert await store.published(PublishedKind.SIGNAL) is None, "without a snapshot there is no signal"
    made = decide(
        ClusterView(classes=(), instances=(), queues=()),
        now_ns=START_NS,
        fleet=Fleet(kinds={}, profiles={}),
        settings=ControllerSettings(),
        planner=plan_edf,
        new_id=lambda cls: GroupId("unused"),
    )
    await reporter.publish(made, START_NS + PERIOD_NS)
    data = await store.published(PublishedKind.SIGNAL)
    assert data is not None
    assert signal_from_plain(orjson.loads(data)).at_ms == START_NS // 1_000_000
