"""A problem as arrays: equal kinds count once, and times are those of the problem."""

from dataclasses import replace

import numpy as np

from benchmarks.planner_problems import medium
from qlm.planner.arrays import problem_arrays
from qlm.planner.fast.settings import SearchBudget
from qlm.planner.fast.solve import solve_fast
from qlm.planner.problem import Problem

PROBLEM = medium(3, 40)


def with_twins(problem: Problem) -> Problem:
    """Give every other instance a kind of its own name, and equal times."""
    twins = {f"{kind} again": each for kind, each in problem.kinds.items()}
    groups = tuple(
        replace(g, time={**g.time, **{f"{kind} again": t for kind, t in g.time.items()}})
        for g in problem.groups
    )
    instances = tuple(
        replace(each, kind=f"{each.kind} again") if at % 2 else each
        for at, each in enumerate(problem.instances)
    )
    return replace(problem, kinds={**problem.kinds, **twins}, groups=groups, instances=instances)


def test_equal_kinds_are_one() -> None:
    one, two = problem_arrays(PROBLEM), problem_arrays(with_twins(PROBLEM))
    assert two.kinds == one.kinds
    assert np.array_equal(two.kind, one.kind)
    assert np.array_equal(two.service_s, one.service_s)


def test_kinds_that_differ_stay_apart() -> None:
    twins = with_twins(PROBLEM)
    kind = next(iter(PROBLEM.kinds))
    slower = replace(
        twins, kinds={**twins.kinds, f"{kind} again": replace(twins.kinds[kind], host_memory_bytes=1)}
    )
    assert len(problem_arrays(slower).kinds) == len(PROBLEM.kinds) + 1


def test_a_plan_is_the_same_with_equal_kinds() -> None:
    budget = SearchBudget(moves=20_000)
    assert solve_fast(with_twins(PROBLEM), budget=budget) == solve_fast(PROBLEM, budget=budget)


def test_times_are_those_of_the_problem() -> None:
    arrays = problem_arrays(PROBLEM)
    groups = {group.id: group for group in PROBLEM.groups}
    for k, kind in enumerate(arrays.kinds):
        for at, id in enumerate(arrays.groups):
            group = groups[id]
            runs = kind in group.time and group.model in PROBLEM.kinds[kind].models
            assert arrays.runs[k, at] == runs
            assert arrays.service_s[k, at] == (group.time[kind].service.mean if runs else 0.0)
            assert arrays.tail_var[k, at] == (group.time[kind].tail.var if runs else 0.0)
