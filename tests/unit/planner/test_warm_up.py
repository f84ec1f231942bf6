"""Warming up reaches what planning compiles."""

from qlm.planner.bound import ascent
from qlm.planner.fast.construct import append_all, insert_all
from qlm.planner.fast.queues import true_cost
from qlm.planner.fast.search import anneal
from qlm.planner.warm_up import warm_up


def test_it_compiles_the_search_and_the_bound() -> None:
    warm_up()
    kernels = [each for each in vars(ascent).values() if hasattr(each, "signatures")]
    assert kernels, "the ascent is compiled"
    for kernel in (append_all, insert_all, anneal, true_cost):
        assert kernel.signatures, kernel
