"""Fast plans: valid, cheap, deterministic, stable."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.planner_problems import changed, live, medium
from qlm.domain.errors import InvalidValueError
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.fast import initial
from qlm.planner.fast.settings import SearchBudget, SearchSettings
from qlm.planner.fast.solve import solve_fast
from qlm.planner.problem import (
    GroupTime,
    Instance,
    Kind,
    ModelCost,
    Plan,
    PlannedGroup,
    Problem,
)
from qlm.planner.verify.referee import verify
from qlm.rct_estimator.normal import Normal
from support.planning import problems, shuffled

FEW = SearchBudget(moves=2000)


@settings(max_examples=60)
@given(problem=problems(), seed=st.integers(0, 2**63 - 1))
def test_a_plan_holds_and_costs_what_it_says(problem: Problem, seed: int) -> None:
    plan = solve_fast(problem, seed=seed, budget=FEW)
    report = verify(problem, plan)
    assert not report.violations
    assert report.penalty_s == pytest.approx(plan.penalty_s, rel=1e-6, abs=1e-3)


@settings(max_examples=20)
@given(problem=problems(), shuffle_seed=st.integers(0, 99))
def test_the_order_of_the_input_does_not_matter(problem: Problem, shuffle_seed: int) -> None:
    other = shuffled(problem, random.Random(shuffle_seed))
    assert solve_fast(other, budget=FEW) == solve_fast(problem, budget=FEW)


@pytest.mark.parametrize("seed", range(20))
def test_it_costs_no_more_than_edf(seed: int) -> None:
    problem = medium(seed, 20 + 9 * seed)
    bare = replace(problem, instances=tuple(replace(each, queue=()) for each in problem.instances))
    edf = verify(bare, plan_edf(bare)).penalty_s
    assert verify(bare, solve_fast(bare)).penalty_s <= edf * (1 + 1e-9) + 1e-6


@pytest.mark.parametrize("seed", range(6))
def test_a_plan_fed_back_stands(seed: int) -> None:
    problem = medium(seed, 60)
    plan = solve_fast(problem)
    again = solve_fast(_queued(problem, plan))
    assert again.queues == plan.queues


def test_a_replan_takes_in_what_is_new_and_moves_little() -> None:
    problem = live(3, groups=160, instances=10)
    plan = solve_fast(problem)
    later = changed(problem, plan, seed=1, share=0.02)
    before = {group: each.id for each in later.instances for group in each.queue}
    replanned = solve_fast(later, budget=SearchBudget(moves=5000))
    report = verify(later, replanned)
    assert not report.violations
    at = {group: instance for instance, queue in replanned.queues.items() for group in queue}
    stayed = sum(at[group] == home for group, home in before.items() if group in at)
    assert stayed >= 0.9 * len([group for group in before if group in at])


def test_more_moves_do_not_make_it_worse() -> None:
    problem = live(5, groups=160, instances=10)
    costs = [solve_fast(problem, budget=SearchBudget(moves=moves)).penalty_s or 0.0 for moves in (0, 300_000)]
    assert costs[1] < 0.95 * costs[0]


def test_a_time_limit_ends_the_search() -> None:
    ticks = iter(range(10_000))
    budget = SearchBudget(time_limit_s=50.0, stopwatch_s=lambda: float(next(ticks)))
    problem = live(5, groups=160, instances=10)
    assert not verify(problem, solve_fast(problem, budget=budget)).violations
    assert next(ticks) < 200, "looked at the clock until time was up, not longer"


def test_a_time_limit_is_used_up_though_moves_become_quicker() -> None:
    looks = 0

    def stopwatch_s() -> float:
        nonlocal looks
        looks += 1
        return min(looks, 8) + 0.1 * max(0, looks - 8)

    problem = live(5, groups=160, instances=10)
    solve_fast(problem, budget=SearchBudget(time_limit_s=40.0, stopwatch_s=stopwatch_s))
    assert 38.0 < stopwatch_s() < 43.0


@pytest.mark.parametrize("seed", range(4))
def test_in_order_the_oldest_of_a_class_goes_first(seed: int) -> None:
    problem = live(seed, groups=80, instances=4)
    plan = solve_fast(problem, budget=SearchBudget(moves=20_000), in_order=True)
    groups = {group.id: group for group in problem.groups}
    for queue in plan.queues.values():
        last: dict[object, float] = {}
        for group in (groups[id] for id in queue):
            if group.deadline_s is None:
                continue
            times = next(iter(group.time.values()))
            cls = (group.model, round(times.service.mean / group.requests, 6), round(times.tail.mean, 6))
            assert last.get(cls, float("-inf")) <= group.deadline_s
            last[cls] = group.deadline_s


@pytest.mark.parametrize("models", [63, 64, 100, 300])
@pytest.mark.parametrize("memory_bytes", [0, 5, 1000])
def test_any_number_of_models_is_planned(models: int, memory_bytes: int) -> None:
    names = [ModelId(f"m{i:03d}") for i in range(models)]
    cost = ModelCost(weights_bytes=1, swap_warm_s=1.0, swap_cold_s=2.0)
    kinds = {"k": Kind(host_memory_bytes=memory_bytes, models=dict.fromkeys(names, cost))}
    time = {"k": GroupTime(service=Normal(2.0, 0.5), tail=Normal(1.0))}
    groups = tuple(
        PlannedGroup(id=GroupId(f"g{i}"), model=name, requests=2, deadline_s=5.0 + i, time=time)
        for i, name in enumerate([*names, *names[::2]])
    )
    fleet = tuple(
        Instance(id=InstanceId(f"i{i}"), kind="k", loaded_model=names[-1], warm_models=(names[0], names[-2]))
        for i in range(3)
    )
    problem = Problem(now_s=0.0, kinds=kinds, instances=fleet, groups=groups)
    plan = solve_fast(problem, budget=FEW)
    assert not verify(problem, plan).violations


def test_limits_are_checked() -> None:
    with pytest.raises(InvalidValueError, match="moves"):
        SearchBudget(moves=-1)
    with pytest.raises(InvalidValueError, match="time_limit_s"):
        SearchBudget(time_limit_s=0.0, stopwatch_s=lambda: 0.0)
    with pytest.raises(InvalidValueError, match="stopwatch_s"):
        SearchBudget(time_limit_s=1.0)


def _queued(problem: Problem, plan: Plan) -> Problem:
    def queue(id: str) -> tuple[GroupId, ...]:
        return next((groups for name, groups in plan.queues.items() if name == id), ())

    instances = tuple(replace(each, queue=queue(each.id)) for each in problem.instances)
    return replace(problem, instances=instances)


def test_models_that_share_one_instance_of_many_all_find_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(initial, "QUEUE_SLOTS_MAX", 40)
    names = [ModelId(f"m{i}") for i in range(20)]
    cost = ModelCost(weights_bytes=1, swap_warm_s=0.0, swap_cold_s=0.0)
    kinds = {
        "able": Kind(host_memory_bytes=100, models=dict.fromkeys(names, cost)),
        "other": Kind(host_memory_bytes=100, models={}),
    }
    time = {"able": GroupTime(service=Normal(1.0), tail=Normal(0.0))}
    groups = tuple(
        PlannedGroup(
            id=GroupId(f"g{i}"), model=names[i % 20], requests=1, deadline_s=5.0 if i % 2 else None, time=time
        )
        for i in range(60)
    )
    fleet = tuple(Instance(id=InstanceId(f"i{i:02d}"), kind="able" if i == 0 else "other") for i in range(20))
    problem = Problem(now_s=0.0, kinds=kinds, instances=fleet, groups=groups)
    assert not verify(problem, solve_fast(problem, budget=FEW)).violations


def test_a_present_queue_out_of_order_still_takes_what_is_new() -> None:
    cost = ModelCost(weights_bytes=1, swap_warm_s=1.0, swap_cold_s=1.0)
    kinds = {"k": Kind(host_memory_bytes=100, models={ModelId("m"): cost})}
    time = {"k": GroupTime(service=Normal(2.0), tail=Normal(1.0))}
    groups = tuple(
        PlannedGroup(id=GroupId(name), model=ModelId("m"), requests=2, deadline_s=due_s, time=time)
        for name, due_s in (("a", 10.0), ("b", 20.0), ("c", 30.0), ("d", 40.0), ("new", 25.0), ("e", 50.0))
    )
    queue = tuple(GroupId(name) for name in ("c", "b", "a", "d", "e"))
    instance = Instance(id=InstanceId("i"), kind="k", loaded_model=ModelId("m"), queue=queue)
    problem = Problem(now_s=0.0, kinds=kinds, instances=(instance,), groups=groups)
    plan = solve_fast(problem, budget=SearchBudget(moves=0), in_order=True)
    assert plan.queues[InstanceId("i")] == ("a", "b", "new", "c", "d", "e")


def test_settings_decide_what_change_is_worth_making() -> None:
    problem = medium(3, 60)
    plan = plan_edf(problem)
    queued = replace(
        problem, instances=tuple(replace(each, queue=plan.queues[each.id]) for each in problem.instances)
    )
    assert solve_fast(queued).queues != plan.queues
    assert (
        solve_fast(queued, settings=SearchSettings(keep_s=1e9, keep_completion_s=1e9)).queues == plan.queues
    )
