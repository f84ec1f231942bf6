"""The order of the virtual queue inside an instance."""

from qlm.agents.batching.policies.virtual_queue import VirtualQueueOrder
from qlm.agents.batching.view import Place
from support.batch_views import MACHINE, Row, view

TWO = MACHINE._replace(kv_blocks=16)  # of 100 tokens and growth: 8 blocks each


def test_a_better_rank_preempts_the_worst_rank() -> None:
    rows = [Row("a", Place.INSIDE, 0.0, rank=2), Row("b", Place.INSIDE, 1.0, rank=1), Row("c", rank=0)]
    assert VirtualQueueOrder().decide(view(*rows, machine=TWO)).run == ("c", "b")


def test_an_equal_rank_preempts_none_even_if_it_came_first() -> None:
    rows = [Row("first", rank=1), Row("b", Place.INSIDE, 1.0, rank=1), Row("c", Place.INSIDE, 2.0, rank=1)]
    assert VirtualQueueOrder().decide(view(*rows, machine=TWO)).run == ("b", "c")


def test_within_a_rank_those_outside_come_by_arrival() -> None:
    rows = [
        Row("late", arrival_s=2.0, rank=1),
        Row("early", arrival_s=1.0, rank=1),
        Row("best", arrival_s=3.0),
    ]
    assert VirtualQueueOrder().decide(view(*rows)).run == ("best", "early", "late")


def test_nobody_is_preempted_for_the_growth_of_others() -> None:
    machine = MACHINE._replace(kv_blocks=15)  # 7 blocks each with the next token
    rows = [Row("a", Place.INSIDE, 0.0), Row("b", Place.INSIDE, 1.0), Row("worse", rank=1)]
    assert VirtualQueueOrder().decide(view(*rows, machine=machine)).run == ("a", "b")


def test_a_pinned_request_keeps_its_blocks_from_a_better_rank() -> None:
    rows = [Row("a", Place.INSIDE, rank=2, pinned=True), Row("b", Place.INSIDE, rank=1), Row("c", rank=0)]
    assert VirtualQueueOrder().decide(view(*rows, machine=TWO)).run == ("a", "c")
    assert VirtualQueueOrder().room(view(*rows)) == MACHINE.seqs_max - 3
