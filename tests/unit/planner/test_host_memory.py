"""Host memory in plans: swaps are from the tier in which a model really sleeps by then, in every method."""

import random
from dataclasses import replace
from itertools import takewhile

import numpy as np
import pytest

from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.domain.operations import SwapTier
from qlm.planner.arrays import COLD, problem_arrays
from qlm.planner.bound.lower_bound import lower_bound
from qlm.planner.exact.solve import solve_exact
from qlm.planner.fast.settings import SearchBudget
from qlm.planner.fast.solve import solve_fast
from qlm.planner.policy.planned_queue import planned_queues
from qlm.planner.problem import GroupTime, Instance, Kind, ModelCost, Plan, PlannedGroup, Problem
from qlm.planner.swapping.compiled import EMPTY, memory_of, swap_models
from qlm.planner.swapping.swaps import Swaps
from qlm.planner.verify.problem_index import ProblemIndex
from qlm.planner.verify.referee import verify
from qlm.rct_estimator.normal import Normal
from support.exact_planning import Shape, best_value
from support.exact_planning import random_problem as small_problem
from support.plans import random_plan, random_problem, slow_penalty

A, B, C = map(ModelId, "ABC")
COST = ModelCost(
    weights_bytes=10, process_bytes=2, swap_warm_s=2.0, swap_reload_s=8.0, swap_cold_s=60.0, unload_s=1.0
)
I0 = InstanceId("i0")


def in_turn(memory_bytes: int, models: str, *, asleep: str = "", leave_s: float = 0.0) -> Problem:
    """One group per letter, on one instance that has A loaded."""
    time = GroupTime(service=Normal(5.0), tail=Normal(5.0))
    return Problem(
        now_s=0.0,
        kinds={"k": Kind(host_memory_bytes=memory_bytes, models=dict.fromkeys((A, B, C), COST))},
        instances=(
            Instance(
                id=I0,
                kind="k",
                loaded_model=A,
                warm_models=tuple(map(ModelId, asleep)),
                leave_s=leave_s,
            ),
        ),
        groups=tuple(
            PlannedGroup(
                id=GroupId(f"g{at}"),
                model=ModelId(model),
                requests=20,
                deadline_s=20.0 + 25 * at,
                time={"k": time},
            )
            for at, model in enumerate(models)
        ),
    )


def tiers(problem: Problem) -> list[str | None]:
    plan = Plan(queues={I0: tuple(group.id for group in problem.groups)})
    return [row.swap for row in verify(problem, plan).rows]


@pytest.mark.parametrize(
    ("memory_bytes", "models", "asleep", "swaps"),
    [
        (0, "ABAB", "", [None, "cold", "cold", "cold"]),
        (12, "ABAB", "", [None, "cold", "warm", "cold"]),
        (24, "ABAB", "", [None, "cold", "warm", "warm"]),
        (4, "ABAB", "", [None, "cold", "reload", "reload"]),
        (24, "ABCABC", "", [None, "cold", "cold", "warm", "cold", "warm"]),
        (14, "ABCABC", "", [None, "cold", "cold", "warm", "cold", "reload"]),
        (24, "BCA", "BC", ["warm", "cold", "warm"]),
    ],
)
def test_tiers_by_hand(memory_bytes: int, models: str, asleep: str, swaps: list[str | None]) -> None:
    assert tiers(in_turn(memory_bytes, models, asleep=asleep)) == swaps


def test_without_host_memory_groups_of_a_model_stay_together() -> None:
    problem = in_turn(0, "ABABAB")
    report = verify(problem, solve_fast(problem, budget=SearchBudget(moves=20_000)))
    assert (report.swaps_cold, report.swaps_warm) == (1, 0)
    assert not report.violations


def test_a_swap_at_the_head_discards_what_runs_and_a_group_of_the_loaded_model_does_not() -> None:
    free, busy = in_turn(100, "BA"), in_turn(100, "BA", leave_s=7.0)
    for order, later_s in (("g0", 7.0), ("g1", 0.0)):
        plan = Plan(queues={I0: (GroupId(order), *(g.id for g in free.groups if g.id != order))})
        starts = [[row.start.mean for row in verify(problem, plan).rows] for problem in (free, busy)]
        assert np.allclose(np.subtract(starts[1], starts[0]), later_s)


@pytest.mark.parametrize("seed", range(60))
def test_compiled_code_follows_the_rule_of_the_agents(seed: int) -> None:
    rng = random.Random(seed)
    names = [ModelId(f"m{at}") for at in range(rng.randint(1, 7))]
    models = {
        name: ModelCost(
            weights_bytes=rng.randint(0, 9),
            process_bytes=rng.randint(0, 2),
            swap_warm_s=rng.uniform(0, 9),
            swap_reload_s=rng.choice([None, rng.uniform(0, 40)]),
            swap_cold_s=rng.uniform(0, 60),
        )
        for name in names
    }
    kind = Kind(host_memory_bytes=rng.randint(0, 30), models=models)
    asleep = tuple(rng.sample(names, rng.randint(0, len(names))))
    instance = Instance(
        id=I0,
        kind="k",
        loaded_model=rng.choice([None, *names]),
        warm_models=asleep,
        unloaded_models=tuple(name for name in asleep if rng.random() < 0.5),
    )
    problem = Problem(now_s=0.0, kinds={"k": kind}, instances=(instance,), groups=())
    arrays, swaps = problem_arrays(problem), Swaps(kind)
    memory = memory_of(arrays, np.arange(len(arrays.models)))
    rows = np.full((1, 1, len(names) + 1), EMPTY, dtype=np.int16)
    rows[0, 0, : len(arrays.asleep[0])] = [2 * model + tier for model, tier in arrays.asleep[0]]
    state, loaded = swaps.at_first(instance), instance.loaded_model
    for _ in range(12):
        new = rng.choice([name for name in names if name != loaded] or [None])
        if new is None:
            break
        old = -1 if loaded is None else arrays.models.index(loaded)
        swap_models(memory, rows, 0, 0, 0, old, arrays.models.index(new))
        state, loaded = swaps.after(state, loaded, new), new
        entries = takewhile(lambda entry: entry >= 0, rows[0, 0].tolist())
        said = [(arrays.models[entry >> 1], entry & 1) for entry in entries]
        assert said == [
            (name, [SwapTier.WARM, SwapTier.RELOAD].index(tier)) for name, tier in state.models.items()
        ]
        sleeping = [name for name in names if name != loaded]
        assert [state.wakes_s[name] for name in sleeping] == [swaps.wake_s(state, name) for name in sleeping]


@pytest.mark.parametrize("memory_bytes", [0, 8, 14, 20, 28])
@pytest.mark.parametrize("seed", range(4))
def test_referee_and_fast_solver_price_host_memory_alike(seed: int, memory_bytes: int) -> None:
    problem = random_problem(seed, groups=25, instances=2, models=5, memory_bytes=memory_bytes, leave_s=6.0)
    by_chance = random_plan(problem, seed)
    assert verify(problem, by_chance).penalty_s == pytest.approx(slow_penalty(problem, by_chance)[0])
    plan = solve_fast(problem, budget=SearchBudget(moves=5_000))
    report = verify(problem, plan)
    assert not report.violations, "the solver claims the penalty that the referee computes"
    assert plan.penalty_s == pytest.approx(report.penalty_s, rel=1e-6, abs=1e-6)
    assert report.penalty_s <= verify(problem, by_chance).penalty_s + 1e-6


@pytest.mark.parametrize("memory_bytes", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_exact_plans_and_bounds_hold_with_evictions(seed: int, memory_bytes: int) -> None:
    shape = Shape(groups=5, instances=2, models=4, memory_bytes=memory_bytes, leave_s=9.0)
    problem = small_problem(shape, random.Random(seed))
    best_s = best_value(problem, None)
    plan = solve_exact(problem)
    assert plan.method == "exact"
    assert verify(problem, plan).penalty_s == pytest.approx(best_s, rel=1e-5, abs=1e-5)
    assert lower_bound(problem) <= best_s + 1e-6


def test_a_group_behind_others_starts_from_the_tier_that_is_left() -> None:
    problem = in_turn(12, "ABC")
    plan = Plan(queues={I0: tuple(group.id for group in problem.groups)})
    (queue,) = planned_queues(ProblemIndex.of(problem), plan)
    begin = queue.start_after(1, A).mean
    assert queue.start_after(1, B).mean - begin == 5.0 + 1.0 + 60.0
    assert queue.start_after(2, A).mean - queue.start_after(2, B).mean == 5.0 + 1.0 + 2.0
    assert queue.start_after(3, A).mean - queue.start_after(3, C).mean == 5.0 + 1.0 + 60.0, "evicted by B"


def test_models_asleep_without_weights_are_no_warm_ones() -> None:
    problem = in_turn(100, "B", asleep="B")
    unloaded = replace(problem, instances=(replace(problem.instances[0], unloaded_models=(B,)),))
    assert (tiers(problem), tiers(unloaded)) == (["warm"], ["reload"])
    assert problem_arrays(unloaded).tier[0].tolist() == [0, 1, COLD]
