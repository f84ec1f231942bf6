"""Which requests fit together, and the policy that changes nothing."""

import pytest

from qlm.agents.batching.packing import packed
from qlm.agents.batching.policies.registry import batch_policy
from qlm.agents.batching.view import Place
from qlm.domain.errors import InvalidValueError
from support.batch_views import MACHINE, Row, view

SMALL = MACHINE._replace(kv_blocks=10, seqs_max=3)


def test_an_order_is_packed_until_one_does_not_fit() -> None:
    # 4 blocks each with the next token and one for growth.
    waiting = view(*(Row(name, prompt=47) for name in "abc"), machine=SMALL)
    assert packed(waiting, [2, 0, 1]) == ["c", "a"]


def test_a_smaller_request_may_pass_one_that_does_not_fit() -> None:
    rows = [Row("a", prompt=100), Row("b", prompt=100), Row("c", prompt=10)]
    waiting = view(*rows, machine=SMALL)
    assert packed(waiting, [0, 1, 2]) == ["a"]
    assert packed(waiting, [0, 1, 2], skips=True) == ["a", "c"]


def test_a_request_that_runs_alone_may_use_what_is_kept_for_growth() -> None:
    assert packed(view(Row("a", prompt=159), machine=SMALL), [0]) == ["a"]
    assert packed(view(Row("a", prompt=160), machine=SMALL), [0]) == []


def test_pinned_requests_inside_keep_their_blocks() -> None:
    rows = [Row("a", prompt=60), Row("b", prompt=60, place=Place.INSIDE, pinned=True), Row("c", prompt=60)]
    assert packed(view(*rows, machine=SMALL), [0, 2, 1]) == ["b", "a"]


def test_batch_slots_bound_the_batch() -> None:
    rows = [Row(name, prompt=1) for name in "abcd"]
    assert packed(view(*rows, machine=SMALL), [0, 1, 2, 3]) == ["a", "b", "c"]


def test_first_come_first_served_keeps_who_runs_and_the_order_of_the_engine() -> None:
    rows = [
        Row("first", arrival_s=3.0),
        Row("runs", arrival_s=2.0, place=Place.INSIDE),
        Row("second", arrival_s=1.0),
    ]
    decision = batch_policy("fcfs").decide(view(*rows))
    assert decision.run == ("runs", "first", "second")
    assert not decision.hold and not decision.recompute and decision.again_s is None
    assert batch_policy("fcfs").room(view(*rows)) == 61


def test_an_unknown_policy_is_refused_with_the_known_names() -> None:
    with pytest.raises(InvalidValueError, match="fcfs"):
        batch_policy("fifo")
