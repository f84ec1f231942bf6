"""Evictions for a model swap are weighed: what they save against what they lose."""

from dataclasses import replace

import pytest

from qlm.agents.core.costs.kv_offload import KvSwapCost
from qlm.agents.core.costs.operation_costs import OperationCosts
from qlm.agents.core.events import QueueRead
from qlm.agents.core.scheduling.eviction_worth import RECHECK_NS, worth_evicting
from qlm.agents.core.stats.pace import Pace
from qlm.domain.actions import Abort
from qlm.domain.virtual_queue import ClassForecast, VirtualQueue
from qlm.rct_estimator.host_memory import SwapCost
from support.agent_bench import HOLDER, Bench, M, N, S, group_of
from support.requests import a_request

RECOMPUTED = KvSwapCost(host_tokens=0, recompute_s=1e-2, load_s=0.0)
SLOW = SwapCost(weights_bytes=1, reload_s=40.0, cold_s=40.0)


def running(costs: OperationCosts) -> Bench:
    """A report of 600 prompt tokens runs, whose answer takes 100 s and is due in 10 minutes."""
    bench = Bench(costs=costs)
    bench.start(
        a_request("report", deadline_ms=600_000, arrival_ns=bench.now_ns, prompt_tokens=600, max_tokens=1000)
    )
    bench.at_pace(token_s=0.1, service_s=100)
    return bench


def wanted(bench: Bench, *, count: int = 1, priority: int = 0, due_s: float = 5) -> bool:
    """Have another model wanted by requests that are due soon; return whether the report is evicted."""
    arrival_ns = bench.now_ns - round((30 - due_s) * S)
    head = a_request("head", model="n", deadline_ms=30_000, arrival_ns=arrival_ns, priority=priority)
    bench.queue(replace(group_of(head, count), last_arrival_ns=arrival_ns))
    bench.later(0.5)
    return bool(bench.take(Abort))


@pytest.mark.parametrize(("count", "evicts"), [(1, False), (400, True)])
def test_a_prompt_is_computed_twice_only_if_more_requests_are_saved_meanwhile(
    count: int, evicts: bool
) -> None:
    # Computing 600 tokens again takes 6 s, in which 120 requests are served.
    bench = running(OperationCosts(kv={M: RECOMPUTED}))
    assert wanted(bench, count=count, due_s=10) == evicts


def test_one_request_is_saved_where_an_eviction_costs_nothing() -> None:
    assert wanted(running(OperationCosts()))


def test_a_higher_priority_is_worth_any_price() -> None:
    assert wanted(running(OperationCosts(kv={M: RECOMPUTED})), priority=-1)


@pytest.mark.parametrize(("rate_rps", "evicts"), [(0.1, False), (2.0, True)])
def test_a_swap_slower_than_an_objective_is_worth_what_it_saves_of_those_to_come(
    rate_rps: float, evicts: bool
) -> None:
    bench = running(OperationCosts(swap={M: SLOW, N: SLOW}, kv={M: RECOMPUTED}))
    patient = a_request("head", model="n", deadline_ms=85_000, arrival_ns=bench.now_ns - 43 * S)
    tight = a_request("tight", model="n", deadline_ms=30_000, arrival_ns=bench.now_ns)
    expected = ClassForecast(cls=tight.cls, service_s=0.05, answer_s=1.0, rate_rps=rate_rps)
    groups = (group_of(patient), group_of(tight, name="tight"))
    bench.send(QueueRead(queue=VirtualQueue(instance=HOLDER.instance, groups=groups, forecasts=(expected,))))
    bench.later(0.5)
    assert bool(bench.take(Abort)) == evicts


def test_an_answer_is_expected_to_end_by_its_limit_or_after_as_long_again() -> None:
    pace = Pace(token_s=0.1, service_s=1.0)
    assert pace.longest_wait_s(20, age_s=1) == pytest.approx(2.0)  # its limit
    assert pace.longest_wait_s(1000, age_s=1) == pytest.approx(5.0)  # hardly any takes longer
    assert pace.longest_wait_s(1000, age_s=30) == pytest.approx(30.0)  # it does
    assert Pace(token_s=0.1).longest_wait_s(1000, age_s=1) == pytest.approx(100.0)
    assert Pace().longest_wait_s(1000, age_s=1) == float("inf")


def test_before_any_answer_has_ended_the_running_ones_may_take_for_ever() -> None:
    bench = running(OperationCosts())
    state = bench.agent.state
    state.stats.paces.clear()
    assert not wanted(bench)
    ((head, _left),) = state.queue.waiting()
    assert worth_evicting(state, M, head, list(state.requests.running.values()), bench.now_ns)


def test_evictions_that_are_not_worth_it_are_weighed_again_after_a_while() -> None:
    bench = running(OperationCosts(kv={M: RECOMPUTED}))
    assert not wanted(bench, due_s=29)
    head = a_request("head", model="n", deadline_ms=30_000, arrival_ns=bench.now_ns - 20 * S)
    bench.queue(replace(group_of(head, 400), last_arrival_ns=head.arrival_ns))
    bench.later(RECHECK_NS / S)
    assert bench.take(Abort)
