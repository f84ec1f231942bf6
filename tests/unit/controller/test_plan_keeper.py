"""The latest plan is kept in the store: when, how often, and what if it cannot be."""

import logging
import threading

import orjson
import pytest

from qlm.cli.clock import SystemClock
from qlm.controller import plan_keeper
from qlm.controller.estimating.state import NOTHING_LEARNED
from qlm.controller.fleet import Fleet
from qlm.controller.plan_keeper import PERIOD_NS, UNCHANGED_NS, PlanKeeper
from qlm.controller.protocol import ControllerSettings, Decision, decide
from qlm.domain.errors import StoreUnavailableError
from qlm.domain.ids import GroupId
from qlm.domain.view import ClusterView
from qlm.planner.admission_signal import signal_from_plain
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.kept_plan import KeptPlan, kept_plan_from_plain
from qlm.store.memory import MemoryStore
from support.flaky import Faults, flaky
from support.plans import random_problem

START_NS = 1_700_000_000_123_456_789


def decision(seed: int, groups: int = 4) -> Decision:
    problem = random_problem(seed, groups=groups)
    return Decision(problem=problem, plan=plan_edf(problem), estimator=NOTHING_LEARNED)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(SystemClock())


async def kept(store: MemoryStore) -> KeptPlan:
    data = await store.kept_plan()
    assert data is not None
    return kept_plan_from_plain(orjson.loads(data))


async def test_what_was_decided_is_kept_with_its_moment(store: MemoryStore) -> None:
    made = decision(1)
    await PlanKeeper(store).keep(made, START_NS)
    assert await kept(store) == KeptPlan(
        at_ms=START_NS // 1_000_000, problem=made.problem, plan=made.plan
    )  # fmt: skip


async def test_plans_are_kept_once_a_second_at_most(store: MemoryStore) -> None:
    keeper = PlanKeeper(store)
    for passed_ns, expected in ((0, 1), (1, 1), (PERIOD_NS - 1, 1), (PERIOD_NS, 4), (PERIOD_NS + 1, 4)):
        await keeper.keep(decision(1 if passed_ns == 0 else 4), START_NS + passed_ns)
        assert (await kept(store)).problem == decision(expected).problem


async def test_a_plan_that_does_not_change_is_kept_now_and_then(store: MemoryStore) -> None:
    keeper, ages_ns = PlanKeeper(store), []
    for passed_ns in range(0, 2 * UNCHANGED_NS + 1, PERIOD_NS // 2):
        await keeper.keep(decision(1), START_NS + passed_ns)
        ages_ns.append(START_NS + passed_ns - (await kept(store)).at_ms * 1_000_000)
    assert (await kept(store)).at_ms == (START_NS + 2 * UNCHANGED_NS) // 1_000_000
    assert UNCHANGED_NS - PERIOD_NS <= max(ages_ns) < UNCHANGED_NS


async def test_a_clock_that_was_set_back_does_not_stop_it(store: MemoryStore) -> None:
    keeper = PlanKeeper(store)
    await keeper.keep(decision(1), START_NS)
    await keeper.keep(decision(2), START_NS - 3600 * PERIOD_NS)
    assert (await kept(store)).problem == decision(2).problem


async def test_a_store_that_is_away_is_told_once_and_tried_again(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    faults = Faults()
    keeper = PlanKeeper(flaky(store, faults))
    with caplog.at_level(logging.WARNING, "qlm.controller"):
        for n, away in enumerate((True, True, False, True)):
            if away:
                faults.fail(StoreUnavailableError("away"), "keep_plan")
            else:
                faults.heal()
            await keeper.keep(decision(1), START_NS + n * UNCHANGED_NS)
    assert faults.raised["keep_plan"] == 3
    assert (await kept(store)).at_ms == (START_NS + 2 * UNCHANGED_NS) // 1_000_000
    told = [record.getMessage() for record in caplog.records]
    assert told == ["the plan is not kept for `qlm plan show`; planning goes on: away"] * 2


async def test_a_large_plan_is_written_on_a_thread(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    written = plan_keeper._written

    def noting(kept: KeptPlan) -> bytes:
        threads.append(threading.get_ident())
        return written(kept)

    monkeypatch.setattr(plan_keeper, "INLINE_GROUPS_MAX", 5)
    monkeypatch.setattr(plan_keeper, "_written", noting)
    keeper = PlanKeeper(store)
    await keeper.keep(decision(1, groups=5), START_NS)
    await keeper.keep(decision(1, groups=6), START_NS + PERIOD_NS)
    here = threading.get_ident()
    assert [thread == here for thread in threads] == [True, False]
    assert len((await kept(store)).problem.groups) == 6


async def test_the_forecast_of_a_decision_is_kept_with_its_plan(store: MemoryStore) -> None:
    keeper = PlanKeeper(store)
    await keeper.keep(decision(1), START_NS)
    assert await store.kept_signal() is None, "nothing is known of the moment"
    made = decide(
        ClusterView(classes=(), instances=(), queues=()),
        now_ns=START_NS,
        fleet=Fleet(kinds={}, profiles={}),
        settings=ControllerSettings(),
        planner=plan_edf,
        new_id=lambda cls: GroupId("unused"),
    )
    await keeper.keep(made, START_NS + PERIOD_NS)
    data = await store.kept_signal()
    assert data is not None
    assert signal_from_plain(orjson.loads(data)).at_ms == START_NS // 1_000_000
