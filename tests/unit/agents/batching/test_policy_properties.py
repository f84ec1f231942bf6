"""What holds for the decisions of each policy that packs its batch."""

import pytest
from hypothesis import given

from qlm.agents.batching.policies.registry import batch_policy
from qlm.agents.batching.view import Place, View
from support.batch_drawn import NOW_S, views

FILLING = ["round-robin", "edf", "virtual-queue"]
PACKED = [*FILLING, "unified"]  # which leaves some blocks to come: see its own tests


@pytest.mark.parametrize("name", PACKED)
@given(seen=views())
def test_the_batch_fits_and_keeps_pinned_requests(name: str, seen: View) -> None:
    run = batch_policy(name).decide(seen).run
    rows = [seen.ids.index(request) for request in run]
    assert len(set(run)) == len(run) <= seen.machine.seqs_max
    assert sum(int(seen.needed_blocks[row]) for row in rows) <= seen.machine.kv_blocks
    pinned = [row for row in range(len(seen.ids)) if seen.pinned[row] and seen.place[row] != Place.OUTSIDE]
    assert set(pinned) <= set(rows)


@pytest.mark.parametrize("name", FILLING)
@given(seen=views())
def test_blocks_are_not_left_to_waste(name: str, seen: View) -> None:
    run = batch_policy(name).decide(seen).run
    left = seen.machine.kv_blocks - sum(
        int(seen.needed_blocks[seen.ids.index(request)]) + 1 for request in run
    )
    for row, request in enumerate(seen.ids):
        if request not in run and len(run) < seen.machine.seqs_max:
            assert int(seen.needed_blocks[row]) + 1 > left


@pytest.mark.parametrize("name", PACKED)
@given(seen=views())
def test_equal_views_give_equal_decisions(name: str, seen: View) -> None:
    first, second = batch_policy(name), batch_policy(name)
    assert first.decide(seen) == second.decide(seen)
    assert first.decide(seen) == second.decide(seen)


@pytest.mark.parametrize("name", PACKED)
@given(seen=views())
def test_it_asks_to_decide_again_later_and_takes_what_has_slots(name: str, seen: View) -> None:
    policy = batch_policy(name)
    decision = policy.decide(seen)
    assert decision.again_s is None or decision.again_s > NOW_S
    assert decision.hold == frozenset() and decision.recompute <= set(decision.run)
    assert policy.room(seen) >= batch_policy("fcfs").room(seen)
