"""The best plan that long searches find: `python -m benchmarks.planner --part best`.

Two of them, for each problem and search seed: the fast solver with many moves, which anneals in many rounds;
and one slow annealing, from insertion in deadline order, which uses the solver's moves but none of its
schedule. The solver's plan after a second is judged by the best of all, so these may take minutes.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from benchmarks.planner_problems import live
from benchmarks.planner_timing import timed
from qlm.planner.arrays import problem_arrays
from qlm.planner.fast.construct import insert_all
from qlm.planner.fast.data import make_data, only
from qlm.planner.fast.initial import Workspace, as_lists, insertion_plan, urgency_order
from qlm.planner.fast.queues import true_cost
from qlm.planner.fast.search import anneal
from qlm.planner.fast.settings import Neighborhood, SearchBudget
from qlm.planner.fast.solve import solve_fast
from qlm.planner.problem import Plan, Problem
from qlm.planner.verify.referee import verify

HOT: Final = 0.3
"""First temperature, over the mean cost of a group with a deadline; of 0.1, 0.2, 0.3 and 1 the best."""

COOLED: Final = 0.003
"""Last temperature over the first."""

STEPS: Final = 50
"""Calls of the compiled search, in each of which the temperature falls."""


def run(seeds: Sequence[int], searches: int, moves: float, groups: int) -> dict[str, Any]:
    """Print what each search finds, and the best."""
    print(f"long searches of {moves:.0e} moves")
    print("seed  search  method        penalty s  s of the processor")
    best: dict[str, float] = {}
    for seed in seeds:
        problem = live(seed, groups=groups)
        for search in range(searches):
            for name in ("slow", "rounds"):
                plan, took = timed(partial(_searched, name, problem, search, int(moves)))
                report = verify(problem, plan)
                assert not report.violations, report.violations
                print(
                    f"{seed:4} {search:7}  {name:8} {report.penalty_s:15.0f} {took.cpu_s:19.1f}", flush=True
                )
                best[str(seed)] = min(report.penalty_s, best.get(str(seed), float("inf")))
    print("best: --best " + " ".join(f"{seed}={penalty_s:.0f}" for seed, penalty_s in best.items()) + "\n")
    return {"moves": moves, "best_s": best}


def _searched(name: str, problem: Problem, seed: int, moves: int) -> Plan:
    if name == "slow":
        return slow_plan(problem, seed, moves)
    return solve_fast(problem, seed=seed, budget=SearchBudget(moves=moves))


def slow_plan(problem: Problem, seed: int, moves: int) -> Plan:
    """Anneal once, slowly; groups without a deadline are inserted at the end. Present queues are ignored.

    Args:
        problem: What waits, and the fleet.
        seed: Of the search.
        moves: In all.
    """
    arrays = problem_arrays(problem)
    data = make_data(arrays)
    workspace = Workspace(arrays, data)
    dated = arrays.placeable & np.isfinite(arrays.deadline_s)
    wanted = np.flatnonzero(dated)
    of_dated = only(data, dated)
    queues = insertion_plan(arrays, of_dated, workspace, wanted)
    assert queues is not None
    random = np.random.SeedSequence(seed).generate_state(1, np.uint64).view(np.int64) | 1
    hot_s = HOT * sum(true_cost(of_dated, queues)) / max(1, len(wanted))
    for step in range(STEPS if len(wanted) else 0):
        from_s, to_s = (hot_s * COOLED ** (at / STEPS) for at in (step, step + 1))
        anneal(of_dated, queues, workspace.candidates, random, Neighborhood(), moves // STEPS, from_s, to_s)
    rest = urgency_order(arrays, np.flatnonzero(arrays.placeable & ~dated))
    assert insert_all(data, queues, workspace.candidates, rest)
    if arrays.placeable.any():
        anneal(data, queues, workspace.candidates, random, Neighborhood(), moves // STEPS, 0.0, 0.0)
    return arrays.plan(as_lists(queues), method="slow annealing")
