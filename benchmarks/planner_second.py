"""A busy controller's problem, planned in a second: `python -m benchmarks.planner --part live`.

One process, one core. What is counted is a controller's round: plan and lower bound, as problem objects in
and out. Compiled code is loaded before, by a small problem; what that takes, first of all with nothing
compiled yet, is measured in processes of their own.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.planner_problems import changed, live
from benchmarks.planner_timing import Took, gap_to, peak_memory_gb, timed
from qlm.planner.bound.lower_bound import lower_bound
from qlm.planner.fast.settings import SearchBudget
from qlm.planner.fast.solve import solve_fast
from qlm.planner.methods import Limits, plan_by
from qlm.planner.problem import Plan, Problem
from qlm.planner.verify.referee import verify

PLAN_S_MAX, AGAIN_S_MAX, MEMORY_GB_MAX, WORSE_MAX = 1.0, 0.1, 1.0, 0.05
"""Wanted: plan and bound, re-plan, memory, and penalty over that of the best plan known."""

BASELINES = ("edf", "group-greedy", "shepherd")
CHANGED_SHARE = 0.01

_FIRST = """
import time
begun = time.perf_counter(), time.process_time()
from benchmarks.planner_second import warm_up
warm_up()
print(time.perf_counter() - begun[0], time.process_time() - begun[1])
"""


def run(
    seeds: Sequence[int],
    groups: int,
    *,
    budget: SearchBudget,
    again: SearchBudget,
    best_s: Mapping[int, float],
    others: Sequence[str] = BASELINES,
    shared: bool = False,
) -> dict[str, Any]:
    """Print the tables.

    Args:
        seeds: Of the problems.
        groups: Of each.
        budget: Of a plan, without its lower bound.
        again: Of a re-plan.
        best_s: Penalty of the best plan known, by seed.
        others: Methods to compare with.
        shared: Groups share the errors of their class and their instance.
    """
    result: dict[str, Any] = {"first calls": first_calls(), "rows": []}
    warm_up()
    for seed in seeds:
        problem = live(seed, groups=groups, shared=shared)
        print(f"live({seed}): {len(problem.groups)} groups on {len(problem.instances)} instances")
        plan, row = planned(problem, budget, best_s.get(seed), others)
        row |= {"seed": seed} | planned_again(problem, plan, seed, budget, again)
        result["rows"].append(row)
    memory_gb = peak_memory_gb()
    print(f"peak memory {memory_gb:.2f} GB: {_verdict(memory_gb <= MEMORY_GB_MAX)}\n")
    return result | {"peak_memory_gb": memory_gb}


def warm_up() -> None:
    """Compile or load what planning runs, by a small problem and its re-plan."""
    problem = live(0, groups=40, instances=4, models=3)
    plan = solve_fast(problem)
    solve_fast(changed(problem, plan, 0))
    lower_bound(problem)
    lower_bound(live(0, groups=400, instances=40, models=3))


def first_calls() -> dict[str, list[float]]:
    """Time the first plan and bound of a process: with nothing compiled yet, and with all in the cache."""
    result = {}
    with tempfile.TemporaryDirectory(prefix="qlm-bench-") as folder:
        for name in ("nothing compiled yet", "compiled code in the cache"):
            environment = {**os.environ, "NUMBA_CACHE_DIR": folder, "PYTHONPATH": os.pathsep.join(sys.path)}
            done = subprocess.run(
                [sys.executable, "-c", _FIRST], env=environment, capture_output=True, text=True, check=True,
                cwd=Path(__file__).parents[1],
            )  # fmt: skip
            wall_s, cpu_s = map(float, done.stdout.split())
            result[name] = [wall_s, cpu_s]
            print(f"first call, imports included, {name}: {Took(wall_s, cpu_s)}", flush=True)
    print()
    return result


def planned(
    problem: Problem, budget: SearchBudget, best_s: float | None, others: Sequence[str] = BASELINES
) -> tuple[Plan, dict[str, Any]]:
    """Plan from scratch; print and return what it took and what it is worth."""
    plan, took = timed(lambda: solve_fast(problem, budget=budget))
    bound_s, bound_took = timed(lambda: lower_bound(problem))
    penalty_s = _referee_s(problem, plan)
    whole_s, whole_cpu_s = took.wall_s + bound_took.wall_s, took.cpu_s + bound_took.cpu_s
    print(f"  plan {took}, lower bound {bound_took}:")
    print(f"  together {Took(whole_s, whole_cpu_s)}, {_verdict(whole_s <= PLAN_S_MAX)}")
    gap = gap_to(problem, penalty_s, bound_s)
    print(f"  penalty {penalty_s:.0f} s, lower bound {bound_s:.0f} s, gap {gap:.1%}")
    row: dict[str, Any] = {
        "plan_wall_s": took.wall_s,
        "plan_cpu_s": took.cpu_s,
        "bound_wall_s": bound_took.wall_s,
        "bound_cpu_s": bound_took.cpu_s,
        "penalty_s": penalty_s,
        "bound_s": bound_s,
    }
    for name in others:
        other, other_took = timed(partial(plan_by, name, problem, Limits()))
        row[name] = _referee_s(problem, other)
        part = penalty_s / row[name]
        print(f"  {name:12} {row[name]:.0f} s, in {other_took}; fast has {part:.3f} of it")
    if best_s is not None:
        worse = penalty_s / best_s - 1.0
        row |= {"best_s": best_s, "worse": worse}
        print(f"  best known   {best_s:.0f} s: fast {worse:+.1%}, {_verdict(worse <= WORSE_MAX)}")
    return plan, row


def planned_again(
    problem: Problem, plan: Plan, seed: int, budget: SearchBudget, short: SearchBudget
) -> dict[str, Any]:
    """Plan again after a second in which 1 % of the groups were replaced: quickly, at leisure, and anew."""
    later = changed(problem, plan, seed, CHANGED_SHARE)
    again, took = timed(lambda: solve_fast(later, budget=short))
    report = verify(later, again)
    assert not report.violations, report.violations
    good = _verdict(took.wall_s <= AGAIN_S_MAX)
    print(
        f"  {CHANGED_SHARE:.0%} changed: re-plan {took}, {good}: penalty {report.penalty_s:.0f} s, ", end=""
    )
    print(f"{len(report.moved)} groups moved")
    empty = replace(later, instances=tuple(replace(each, queue=()) for each in later.instances))
    others = {}
    for name, start in (
        ("the same, with the time limit of a plan", later),
        ("from nothing, moves free", empty),
    ):
        other, other_took = timed(partial(solve_fast, start, budget=budget))
        others[name] = _referee_s(start, other)
        more = report.penalty_s / others[name] - 1.0 if others[name] > 0 else 0.0
        print(
            f"  {name}, {other_took}: penalty {others[name]:.0f} s; the re-plan has {more:+.1%}", flush=True
        )
    return {
        "again_wall_s": took.wall_s,
        "again_cpu_s": took.cpu_s,
        "again_penalty_s": report.penalty_s,
        "again_moved": len(report.moved),
        "others_s": others,
    }


def _referee_s(problem: Problem, plan: Plan) -> float:
    report = verify(problem, plan)
    assert not report.violations, report.violations
    return report.penalty_s


def _verdict(good: bool) -> str:
    return "as wanted" if good else "NOT as wanted"
