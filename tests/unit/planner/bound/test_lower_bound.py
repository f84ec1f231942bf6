import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.planner_problems import medium, small
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.arrays import problem_arrays
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.baselines.random_placement import plan_random
from qlm.planner.bound.columns import column_generation_bound
from qlm.planner.bound.dual_ascent import ascent_bound
from qlm.planner.bound.lower_bound import EXACT_PAIRS_MAX, INSTANCE_PAIRS_MAX, bound_of, lower_bound
from qlm.planner.bound.relaxation import Weights, relaxation
from qlm.planner.problem import GroupTime, Instance, Kind, ModelCost, PlannedGroup, Problem
from qlm.planner.verify.referee import verify
from qlm.rct_estimator.normal import NOTHING, Normal
from support.sleepers import first_asleep, swap

SAME = 1e-6
"""Bounds within this share of each other count as equal: it is above what the linear program leaves open."""


def queue_penalty_s(problem: Problem, instance: Instance, queue: Sequence[PlannedGroup]) -> float:
    """The objective of one queue, request by request, straight from the definition."""
    kind = problem.kinds[instance.kind]
    mean, var, tail = instance.busy.mean, instance.busy.var, Normal(instance.leave_s)
    loaded, asleep, penalty_s = instance.loaded_model, first_asleep(instance, kind), 0.0
    for group in queue:
        if group.model != loaded:
            swap_s, asleep = swap(kind, asleep, loaded, group.model)
            mean, var = mean + tail.mean + swap_s, var + tail.var
            loaded = group.model
        time = group.time[instance.kind]
        if group.deadline_s is not None:
            for r in range(1, group.requests + 1):
                u = r / group.requests
                x = mean + u * time.service.mean + time.tail.mean - (group.deadline_s - problem.now_s)
                penalty_s += request_penalty_s(x, var + u * u * time.service.var + time.tail.var, problem)
        if any(group.id in other.queue for other in problem.instances) and group.id not in instance.queue:
            penalty_s += problem.move_s
        mean, var, tail = mean + time.service.mean, var + time.service.var, time.tail
    return penalty_s


def request_penalty_s(x: float, var: float, problem: Problem) -> float:
    if var == 0:
        return x + problem.miss_weight_s if x > 0 else 0.0
    sd = math.sqrt(var)
    late = 0.5 * math.erfc(-x / sd / math.sqrt(2))
    density = math.exp(-0.5 * (x / sd) ** 2) / math.sqrt(2 * math.pi)
    return x * late + sd * density + problem.miss_weight_s * late


def least_penalty_s(problem: Problem) -> float:
    """The best of all plans: every assignment, every order."""
    best: dict[tuple[str, frozenset[str]], float] = {}

    def of_queue(instance: Instance, groups: tuple[PlannedGroup, ...]) -> float:
        key = (instance.id, frozenset(group.id for group in groups))
        if key not in best:
            best[key] = min(queue_penalty_s(problem, instance, order) for order in permutations(groups))
        return best[key]

    return min(
        sum(
            of_queue(i, tuple(g for g, at in zip(problem.groups, places, strict=True) if at is i))
            for i in problem.instances
        )
        for places in product(*(list(able(problem, group)) for group in problem.groups))
    )


def able(problem: Problem, group: PlannedGroup) -> Iterator[Instance]:
    for instance in problem.instances:
        if group.model in problem.kinds[instance.kind].models and instance.kind in group.time:
            yield instance


def queued(problem: Problem, rng: np.random.Generator) -> Problem:
    """Let most groups stand in some queue, with a price of moving."""
    queues: dict[InstanceId, list[GroupId]] = {instance.id: [] for instance in problem.instances}
    for group in problem.groups:
        if rng.random() < 0.7:
            queues[problem.instances[int(rng.integers(len(problem.instances)))].id].append(group.id)
    instances = tuple(replace(i, queue=tuple(queues[i.id])) for i in problem.instances)
    return replace(problem, instances=instances, move_s=float(rng.choice([50.0, 5000.0])))


def odd(problem: Problem, rng: np.random.Generator) -> Problem:
    """Let service times, tails or variances vanish or grow, and deadlines be past or on the second."""
    service, tail = float(rng.choice([0.0, 1.0])), float(rng.choice([0.0, 1.0, 5.0]))
    var, to_deadline = float(rng.choice([0.0, 0.01, 30.0])), float(rng.uniform(-2.0, 1.0))
    groups = []
    for group in problem.groups:
        time = {
            kind: GroupTime(
                service=Normal(t.service.mean * service, t.service.var * var),
                tail=Normal(t.tail.mean * tail, t.tail.var * var),
            )
            for kind, t in group.time.items()
        }
        deadline_s = group.deadline_s
        if deadline_s is not None:
            deadline_s = problem.now_s + (deadline_s - problem.now_s) * to_deadline
            deadline_s = round(deadline_s) if rng.random() < 0.5 else deadline_s
        groups.append(replace(group, time=time, deadline_s=deadline_s))
    return replace(problem, groups=tuple(groups), miss_weight_s=float(rng.choice([0.0, 600.0])))


def tiny_problems(count: int) -> Iterator[Problem]:
    for seed in range(count):
        rng = np.random.default_rng(seed)
        groups, instances, models = (int(rng.integers(1, most)) for most in (5, 4, 4))
        problem = small(seed, groups, instances, models, bool(seed % 2))
        if seed % 3 == 1:
            problem = queued(problem, rng)
        if seed % 3 == 2:
            problem = odd(problem, rng)
        yield problem


def test_never_exceeds_the_best_of_all_plans_and_comes_close_under_overload() -> None:
    bound_s = best_s = 0.0
    for at, problem in enumerate(tiny_problems(120)):
        optimum_s = least_penalty_s(problem)
        bounds = [lower_bound(problem)]
        arrays, weights = problem_arrays(problem), Weights(miss_s=problem.miss_weight_s)
        by_kind, finer = (relaxation(arrays, weights, lanes=lanes) for lanes in ("kind", "instance"))
        if len(by_kind.groups):
            bounds.append(by_kind.moves_s + ascent_bound(by_kind, 6))
            bounds.append(finer.moves_s + ascent_bound(by_kind, 6, finer=finer))
        assert max(bounds) <= optimum_s * (1 + 1e-9) + 1e-9, f"problem {at}"
        if at % 6 == 3:
            bound_s, best_s = bound_s + bounds[0], best_s + optimum_s
    assert bound_s > 0.85 * best_s


def test_never_exceeds_any_plan_of_larger_problems() -> None:
    for seed in range(15):
        problem = medium(seed, 20 + 8 * seed)
        plans = [plan_edf(problem), plan_random(problem, seed=seed)]
        bound_s = lower_bound(problem)
        assert 0 <= bound_s <= min(verify(problem, plan).penalty_s for plan in plans), seed


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    overloaded=st.booleans(),
    at=st.integers(0, 5),
    longer_s=st.one_of(st.none(), st.floats(0.001, 100.0)),
)
def test_a_longer_deadline_never_raises_it(
    seed: int, overloaded: bool, at: int, longer_s: float | None
) -> None:
    problem = small(seed, 6, 2, 2, overloaded)
    groups = list(problem.groups)
    old = groups[at].deadline_s
    groups[at] = replace(groups[at], deadline_s=None if old is None or longer_s is None else old + longer_s)
    before_s, after_s = lower_bound(problem), lower_bound(replace(problem, groups=tuple(groups)))
    assert after_s <= before_s * (1 + SAME) + SAME


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    overloaded=st.booleans(),
    loaded=st.sampled_from([None, "m0", "m1"]),
    busy=st.sampled_from([NOTHING, Normal(1.5, 0.0), Normal(7.0, 9.0)]),
    twin=st.booleans(),
)
def test_an_added_instance_never_raises_it(
    seed: int, overloaded: bool, loaded: str | None, busy: Normal, twin: bool
) -> None:
    problem = small(seed, 6, 2, 2, overloaded)
    new = Instance(
        id=InstanceId("new"), kind="k0", loaded_model=None if loaded is None else ModelId(loaded), busy=busy
    )
    if twin:
        new = replace(problem.instances[0], id=InstanceId("new"))
    larger = replace(problem, instances=(*problem.instances, new))
    assert lower_bound(larger) <= lower_bound(problem) * (1 + SAME) + SAME


def test_input_order_does_not_matter() -> None:
    for problem in (small(5, 6, 3, 3, True), medium(2, 60)):
        turned = replace(
            problem,
            groups=problem.groups[::-1],
            instances=problem.instances[::-1],
            kinds=dict(reversed(problem.kinds.items())),
        )
        assert lower_bound(turned) == lower_bound(problem)


def one_kind(groups: Sequence[PlannedGroup], *instances: Instance, move_s: float = 0.0) -> Problem:
    cost = ModelCost(weights_bytes=1, swap_warm_s=4.0, swap_cold_s=40.0, unload_s=1.0)
    kinds = {
        "a": Kind(host_memory_bytes=10, models={ModelId("m"): cost, ModelId("n"): cost}),
        "b": Kind(host_memory_bytes=10, models={}),
    }
    return Problem(now_s=50.0, kinds=kinds, instances=instances, groups=tuple(groups), move_s=move_s)


def group(id: str, deadline_s: float | None, *, service_s: float = 1.0, requests: int = 1) -> PlannedGroup:
    return PlannedGroup(
        id=GroupId(id),
        model=ModelId("m"),
        requests=requests,
        deadline_s=None if deadline_s is None else 50.0 + deadline_s,
        time={"a": GroupTime(service=Normal(service_s), tail=Normal(2.0))},
    )


def instance(id: str, loaded: str | None = "m", *queue: str, kind: str = "a") -> Instance:
    return Instance(
        id=InstanceId(id),
        kind=kind,
        loaded_model=None if loaded is None else ModelId(loaded),
        queue=tuple(GroupId(each) for each in queue),
    )


def test_one_request_alone_is_charged_in_full() -> None:
    problem = one_kind([group("g", 2.0, service_s=10.0)], instance("i"))
    assert lower_bound(problem) == pytest.approx(10.0 + 600.0, rel=1e-6)


def test_the_least_swap_is_charged() -> None:
    problem = one_kind([group("g", 2.0, service_s=10.0)], instance("i", "n"), instance("j", None))
    assert lower_bound(problem) == pytest.approx(10.0 + 40.0 + 600.0, rel=1e-6)


def test_work_beyond_capacity_is_missed() -> None:
    groups = [group(f"g{at:02d}", 7.0) for at in range(20)]
    optimum_s = 15 * 600 + sum(range(1, 16))
    bound_s = lower_bound(one_kind(groups, instance("i")))
    assert 0.98 * optimum_s < bound_s <= optimum_s


def test_what_can_be_in_time_costs_nothing() -> None:
    groups = [group(f"g{at:02d}", 60.0) for at in range(20)]
    assert lower_bound(one_kind(groups, instance("i"))) == 0.0


def test_without_deadlines_or_instances_it_is_zero() -> None:
    assert lower_bound(one_kind([group("g", None)], instance("i"))) == 0.0
    assert lower_bound(one_kind([group("g", -5.0)])) == 0.0
    assert lower_bound(one_kind([], instance("i"))) == 0.0


def test_groups_that_run_nowhere_cost_nothing() -> None:
    assert lower_bound(one_kind([group("g", -5.0)], instance("i", None, kind="b"))) == 0.0


def test_moves_that_no_plan_avoids_are_charged() -> None:
    stuck = instance("b", None, "g", "h", kind="b")
    problem = one_kind([group("g", None), group("h", 2.0, service_s=10.0)], instance("i"), stuck, move_s=7.0)
    assert lower_bound(problem) == pytest.approx(7.0 + 7.0 + 610.0, rel=1e-6)


def test_misses_alone_are_bounded_too() -> None:
    groups = [group(f"g{at:02d}", 7.0) for at in range(20)]
    arrays = problem_arrays(one_kind(groups, instance("i")))
    late = bound_of(arrays, late_weight=0.0, miss_weight_s=1.0)
    assert 14.5 < late <= 15.0


def pairs(problem: Problem) -> int:
    return sum(g.deadline_s is not None for g in problem.groups) * len(problem.instances)


def test_the_ways_to_bound_agree_about() -> None:
    problem = medium(6, 36)
    assert EXACT_PAIRS_MAX < pairs(problem) <= INSTANCE_PAIRS_MAX
    arrays, weights = problem_arrays(problem), Weights(miss_s=problem.miss_weight_s)
    by_kind, finer = relaxation(arrays, weights, lanes="kind"), relaxation(arrays, weights, lanes="instance")
    optimum_s = column_generation_bound(finer)
    assert 0.9 * optimum_s < ascent_bound(by_kind, 10, finer=finer) < 1.02 * optimum_s
    # Instances of a kind taken together are a weaker relaxation, however good the prices are.
    assert 0.7 * optimum_s < ascent_bound(by_kind, 10) < 1.02 * optimum_s


def test_more_turns_help_and_none_is_valid() -> None:
    problem = medium(12, 150)
    none_s, few_s, many_s = (lower_bound(problem, iterations=at) for at in (0, 4, 40))
    assert 0 < none_s <= few_s
    assert 0.9 * many_s <= few_s <= 1.03 * many_s
