"""For how long a slot that may free by itself is waited for before a request is preempted."""

import math

import pytest

from qlm.agents.core.costs.kv_offload import KvSwapCost
from qlm.agents.core.costs.operation_costs import OperationCosts
from qlm.agents.core.scheduling.preemption import victims
from qlm.agents.core.scheduling.slot_wait import MISS_MIN, _expected, worth_waiting_s
from qlm.domain.actions import Abort
from support.agent_bench import Bench, M, group_of
from support.requests import a_request


def full(places: int, *, service_s: float, again_s: float = 0.0) -> Bench:
    """Return an agent with as many requests as its batch has places, each computed again in that time."""
    cost = KvSwapCost(host_tokens=0, recompute_s=again_s / 2, load_s=1.0)
    bench = Bench(seqs_max=places, costs=OperationCosts(kv={M: cost}))
    for number in range(places):
        bench.start(a_request(f"r{number}", max_tokens=1000))
    bench.at_pace(token_s=0.1, service_s=service_s)
    return bench


def test_the_more_run_the_sooner_one_ends() -> None:
    waits = [
        worth_waiting_s(full(places, service_s=10.0).agent.state, 0, 1, 5.0) for places in (1, 8, 16, 64)
    ]
    assert waits[0] == 0.0
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(5.0 - 3.9 * 10 / 64, abs=0.1)


@pytest.mark.parametrize(("ends", "chance"), [(1, 0.02), (1, 0.2), (2, 0.1), (10, 0.05), (100, 0.2)])
def test_so_many_are_expected_that_fewer_end_with_the_chance_given(ends: int, chance: float) -> None:
    expected = _expected(ends, chance)
    fewer = sum(math.exp(-expected + n * math.log(expected) - math.lgamma(n + 1)) for n in range(ends))
    assert fewer == pytest.approx(chance, rel=0.05)


def test_two_places_free_later_than_one() -> None:
    state = full(64, service_s=10.0).agent.state
    one, two = (worth_waiting_s(state, 0, places, 5.0) for places in (1, 2))
    assert 0 < two < one


def test_a_preemption_that_costs_much_is_put_off_for_longer() -> None:
    cheap, dear = (full(32, service_s=10.0, again_s=again_s).agent.state for again_s in (0.0, 0.1))
    assert worth_waiting_s(cheap, 0, 1, 2.0) < worth_waiting_s(dear, 0, 1, 2.0) <= 2.0


def test_an_urgent_request_waits_for_a_slot_that_frees_soon_and_preempts_if_none_does() -> None:
    bench = full(32, service_s=10.0)
    bench.queue(group_of(a_request("u", deadline_ms=14_000, arrival_ns=bench.now_ns), name="u"))
    assert not bench.take(Abort), "three end each second"
    bench.later(3.0)
    assert bench.take(Abort)
    assert MISS_MIN > 0


def test_who_would_lose_its_objective_is_not_preempted() -> None:
    bench = Bench()
    for name in ("may wait", "late then"):
        bench.start(a_request(name, deadline_ms=60_000))
    running = bench.agent.state.requests.running.values()
    head = (0, 0.0, 0)
    spared = [each for each in running if each.id == "late then"]
    found = victims(running, head=head, count=2, now_ns=-1, spared=lambda each: each in spared)
    assert [each.id for each in found] == ["may wait"]
