"""SHEPHERD's integer program, against trying everything, and its limits."""

import random
from collections.abc import Iterator, Sequence
from itertools import groupby, permutations, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.planner_problems import live
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.baselines import shepherd
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.baselines.schedule import empty_schedules
from qlm.planner.baselines.shepherd import WINDOW_GROUPS_MAX, plan_shepherd
from qlm.planner.baselines.shepherd_ilp import Solution, serve_most
from qlm.planner.problem import GroupTime, Instance, Kind, ModelCost, Plan, PlannedGroup, Problem
from qlm.rct_estimator.normal import Normal
from support.planning import check_plan, problems, shuffled
from support.sleepers import first_asleep, swap

A, B, C = map(ModelId, "abc")


def ends_s(problem: Problem, instance: Instance, queue: Sequence[PlannedGroup]) -> list[float]:
    """Return the end of each fixed batch."""
    kind, leave_s = problem.kinds[instance.kind], instance.leave_s
    clock_s, loaded, ends = instance.busy.mean, instance.loaded_model, list[float]()
    asleep = first_asleep(instance, kind)
    for group in queue:
        if group.model != loaded:
            swap_s, asleep = swap(kind, asleep, loaded, group.model)
            clock_s += swap_s + (leave_s if not ends else 0.0)
            loaded = group.model
        time = group.time[instance.kind]
        clock_s += time.service.mean + time.tail.mean
        ends.append(clock_s)
    return ends


def in_time(problem: Problem, instance: Instance, queue: Sequence[PlannedGroup]) -> int:
    return sum(
        group.requests
        for group, end_s in zip(queue, ends_s(problem, instance, queue), strict=True)
        if group.deadline_s is not None and problem.now_s + end_s <= group.deadline_s
    )


def met(problem: Problem, plan: Plan) -> int:
    groups = {group.id: group for group in problem.groups}
    return sum(
        in_time(problem, instance, [groups[id] for id in plan.queues[instance.id]])
        for instance in problem.instances
    )


def served(problem: Problem) -> Iterator[list[list[PlannedGroup]]]:
    """All ways to serve some batches in some order."""
    for places in product(range(-1, len(problem.instances)), repeat=len(problem.groups)):
        parts = [
            [g for g, place in zip(problem.groups, places, strict=True) if place == at]
            for at in range(len(problem.instances))
        ]
        yield from (list(map(list, queues)) for queues in product(*map(permutations, parts)))


def most(problem: Problem, *, model_once: bool) -> int:
    """The most requests in time that any way has; with `model_once` no instance comes back to a model."""
    best = 0
    for queues in served(problem):
        runs = [[model for model, _ in groupby(queue, key=lambda g: g.model)] for queue in queues]
        if not model_once or all(len(run) == len(set(run)) for run in runs):
            pairs = zip(problem.instances, queues, strict=True)
            best = max(best, sum(in_time(problem, instance, queue) for instance, queue in pairs))
    return best


def drawn(rng: random.Random, groups: int, instances: int) -> Problem:
    """Three models, and deadlines of which a part can be met; all times are whole seconds."""

    def cost() -> ModelCost:
        warm_s, cold_s, unload_s = rng.randint(0, 3), rng.randint(3, 8), rng.randint(0, 2)
        return ModelCost(weights_bytes=1, swap_warm_s=warm_s, swap_cold_s=cold_s, unload_s=unload_s)

    def time() -> GroupTime:
        return GroupTime(service=Normal(rng.randint(1, 6)), tail=Normal(rng.randint(0, 2)))

    return Problem(
        now_s=100.0,
        kinds={
            kind: Kind(host_memory_bytes=100, models={model: cost() for model in (A, B, C)}) for kind in "kl"
        },
        instances=tuple(
            Instance(
                id=InstanceId(f"i{n}"),
                kind=rng.choice("kl"),
                loaded_model=rng.choice((A, B, C, None)),
                warm_models=tuple(rng.sample((A, B, C), rng.randint(0, 2))),
                busy=Normal(rng.randint(0, 3)),
            )
            for n in range(instances)
        ),
        groups=tuple(
            PlannedGroup(
                id=GroupId(f"g{n}"),
                model=rng.choice((A, B, C)),
                requests=rng.randint(1, 9),
                deadline_s=100.5 + rng.randint(2, 25),
                time={"k": time(), "l": time()},
            )
            for n in range(groups)
        ),
    )


@pytest.mark.parametrize("seed", range(25))
def test_as_many_requests_are_in_time_as_any_order_and_placement_allows(seed: int) -> None:
    problem = drawn(random.Random(seed), groups=4, instances=2)
    found = met(problem, plan_shepherd(problem))
    assert most(problem, model_once=True) <= found <= most(problem, model_once=False)


def test_the_program_finds_what_list_scheduling_does_not() -> None:
    rng = random.Random(5)
    drawings = [drawn(rng, groups=8, instances=2) for _ in range(10)]
    better = [met(p, plan_shepherd(p)) - met(p, plan_edf(p)) for p in drawings]
    assert min(better) >= 0 and sum(better) > 0


def test_an_unload_counts_only_where_another_model_follows() -> None:
    cost = ModelCost(weights_bytes=1, swap_warm_s=0.0, swap_cold_s=0.0, unload_s=50.0)
    problem = Problem(
        now_s=0.0,
        kinds={"k": Kind(host_memory_bytes=100, models={A: cost, B: cost})},
        instances=(Instance(id=InstanceId("i"), kind="k"),),
        groups=tuple(
            PlannedGroup(
                id=GroupId(name),
                model=model,
                requests=1,
                deadline_s=10.0,
                time={"k": GroupTime(service=Normal(8.0), tail=Normal(2.0))},
            )
            for name, model in (("x", A), ("y", B))
        ),
    )
    schedules = empty_schedules(problem)
    solved = serve_most(problem.groups, schedules, now_s=0.0, nodes_max=100, time_limit_s=None)
    assert solved.served is not None and sum(map(len, solved.served)) == 1


@settings(max_examples=25)
@given(problems(groups_max=8), st.randoms(use_true_random=False))
def test_every_group_stands_once_where_it_runs_whatever_the_input_order(
    problem: Problem, rng: random.Random
) -> None:
    plan = plan_shepherd(problem)
    check_plan(problem, plan)
    assert plan_shepherd(shuffled(problem, rng)) == plan


def test_windows_follow_each_other_and_what_is_late_comes_last() -> None:
    problem = drawn(random.Random(2), groups=3 * WINDOW_GROUPS_MAX, instances=3)
    plan = plan_shepherd(problem)
    check_plan(problem, plan)
    assert plan_shepherd(problem) == plan
    assert met(problem, plan) > met(problem, plan_edf(problem))


def test_past_the_limit_of_programs_windows_are_list_scheduled(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = drawn(random.Random(2), groups=3 * WINDOW_GROUPS_MAX, instances=3)
    solved = met(problem, plan_shepherd(problem))
    monkeypatch.setattr(shepherd, "PROGRAMS_MAX", 0)
    listed = plan_shepherd(problem)
    check_plan(problem, listed)
    assert met(problem, listed) < solved


def test_a_large_plan_takes_a_bounded_number_of_iterations_and_is_the_same_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[int] = []

    def counted(*given: Any, **limits: Any) -> Solution:
        solution = serve_most(*given, **limits)
        used.append(solution.iterations)
        return solution

    monkeypatch.setattr(shepherd, "serve_most", counted)
    monkeypatch.setattr(shepherd, "ITERATIONS_MAX", 1000)
    problem = live(1, 300, 24)
    plan = plan_shepherd(problem)
    windows = len([g for g in problem.groups if g.deadline_s is not None]) // WINDOW_GROUPS_MAX
    assert 1 <= len(used) < windows
    assert sum(used[:-1]) < 1000 <= sum(used)
    check_plan(problem, plan)
    assert plan_shepherd(problem) == plan


def test_no_time_at_all_still_gives_a_plan() -> None:
    problem = drawn(random.Random(2), groups=2 * WINDOW_GROUPS_MAX, instances=3)
    check_plan(problem, plan_shepherd(problem, time_limit_s=0.0))
