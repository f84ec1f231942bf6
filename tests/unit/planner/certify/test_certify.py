"""The certificate against the best of all plans: never above it, whatever the problem has."""

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from benchmarks.planner_live import live
from qlm.planner.arrays import problem_arrays
from qlm.planner.bound.lower_bound import lower_bound
from qlm.planner.certify.ascent import Pricing, bound_at
from qlm.planner.certify.certificate import Certificate, Progress
from qlm.planner.certify.certify import certify
from qlm.planner.certify.tracks import build_tracks, marked
from qlm.planner.exact.solve import solve_on
from qlm.planner.fast.settings import SearchBudget
from qlm.planner.fast.solve import solve_fast
from qlm.planner.problem import GroupTime, PlannedGroup, Problem
from qlm.planner.verify.referee import gap, verify
from qlm.rct_estimator.normal import Normal
from support.exact_planning import Shape, best_value, random_problem

pytestmark = pytest.mark.timeout(400)  # the first call compiles

TOLERANCE = 1e-6


def certificate_of(problem: Problem, limit_s: float = 60.0) -> Certificate:
    plan = solve_fast(problem, budget=SearchBudget(moves=20_000))
    return certify(problem, plan, stopwatch_s=time.perf_counter, time_limit_s=limit_s)


def tiny_problems(seeds: range) -> Iterator[Problem]:
    """Moves, priorities, scarce host memory, what swaps discard, groups without a deadline, equal groups."""
    for seed in seeds:
        rng = random.Random(seed)
        shape = Shape(
            groups=rng.randint(1, 5),
            instances=rng.randint(1, 3),
            models=rng.randint(1, 3),
            load=rng.choice([1.0, 1.5, 2.5]),
            spread=rng.choice([0.0, 0.3]),
            requests_max=rng.choice([6, 40]),
            memory_bytes=rng.choice([2, 3, 100]),
            leave_s=rng.choice([0.0, 10.0]),
        )
        yield random_problem(shape, rng)


def uncertain(problem: Problem, rng: random.Random) -> Problem:
    """Let groups share errors, promise some of them a share, and let some take no time."""
    return replace(
        problem,
        groups=tuple(_uncertain(group, rng) for group in problem.groups),
        promise_s=rng.choice([0.0, 6_000.0, 1e6]),
    )


def _uncertain(group: PlannedGroup, rng: random.Random) -> PlannedGroup:
    shrunk = rng.choice([1.0, 1.0, 1.0, 0.0])
    return replace(
        group,
        cls=rng.choice([None, "a", "b"]),
        p_met=rng.choice([None, 0.5, 0.9]),
        time={kind: _shared(time, shrunk, rng) for kind, time in group.time.items()},
    )


def _shared(time: GroupTime, shrunk: float, rng: random.Random) -> GroupTime:
    service = Normal(time.service.mean * shrunk, time.service.var * shrunk)
    return replace(
        time,
        service=service,
        class_sd_s=rng.choice([0.0, 0.2]) * service.mean,
        speed_sd_s=rng.choice([0.0, 0.1]) * service.mean,
        tail_speed_sd_s=rng.choice([0.0, 0.1]) * time.tail.mean,
    )


def test_never_exceeds_the_best_of_all_assignments_and_orders() -> None:
    for at, problem in enumerate(tiny_problems(range(20))):
        bound_s = certificate_of(problem).plan.lower_bound_s
        best_s = best_value(problem, None)
        assert bound_s is not None
        assert bound_s <= best_s * (1 + TOLERANCE) + TOLERANCE, f"problem {at}"


def test_agrees_with_the_exact_solver_also_with_promises_and_shared_errors() -> None:
    proven = 0
    for at, drawn in enumerate(tiny_problems(range(100, 120))):
        problem = uncertain(drawn, random.Random(at))
        made, exact = certificate_of(problem), solve_on(problem, None)
        assert exact.proven, at
        assert made.plan.lower_bound_s is not None
        assert made.plan.penalty_s is not None
        assert made.plan.lower_bound_s <= exact.penalty_s * (1 + TOLERANCE) + TOLERANCE, f"problem {at}"
        assert made.plan.penalty_s >= exact.lower_bound_s * (1 - TOLERANCE) - TOLERANCE, f"problem {at}"
        if made.ended == "proven":
            proven += 1
            assert made.plan.penalty_s == pytest.approx(exact.penalty_s, rel=3e-6, abs=3e-6), at
    assert proven > 0


def test_any_prices_and_marks_give_a_valid_bound() -> None:
    for seed in range(12):
        problem = uncertain(next(tiny_problems(range(200 + seed, 201 + seed))), random.Random(seed))
        arrays, best_s = problem_arrays(problem), solve_on(problem, None).penalty_s
        if not (arrays.placeable & np.isfinite(arrays.deadline_s)).any():
            continue
        tracks = build_tracks(arrays, 200.0, 400)
        rng = np.random.default_rng(seed)
        whole = [
            (track.groups.tolist(), [m for m in range(len(track.begins) - 1) if m != track.loaded])
            for track in tracks.tracks
        ]
        for each in (tracks, marked(tracks, whole)):
            pricing = Pricing(each)
            for scale in (0.5, 1.0, 3.0):
                prices = each.floor_s * rng.uniform(0, scale, len(each.groups))
                prices += rng.uniform(0, 3000 * scale, len(each.groups))
                values = np.array([pricing.best(k, prices)[0] for k in range(len(each.tracks))])
                assert bound_at(each, prices, values) + each.apart_s <= best_s * (1 + TOLERANCE) + TOLERANCE


def test_marks_raise_the_bound_above_the_simple_one_under_overload() -> None:
    problem = live(1, groups=12, instances=2, models=3)
    progress: list[Progress] = []
    plan = solve_fast(problem, budget=SearchBudget(moves=20_000))
    made = certify(problem, plan, stopwatch_s=time.perf_counter, time_limit_s=120.0, notify=progress.append)
    share = gap(problem, made.plan)
    assert made.plan.lower_bound_s is not None
    assert share is not None
    assert made.plan.lower_bound_s > 1.03 * lower_bound(problem)
    assert share < 0.06
    assert made.ended == "converged"
    assert [each.bound_s for each in progress] == sorted(each.bound_s for each in progress)


def test_is_valid_whenever_it_stops() -> None:
    problem = live(2, groups=40, instances=4, models=5)
    plan = solve_fast(problem, budget=SearchBudget(moves=50_000))
    for readings in (1, 50, 500):
        made = certify(problem, plan, stopwatch_s=map(float, count()).__next__, time_limit_s=readings)
        assert made.ended == "limit"
        assert made.plan.lower_bound_s is not None
        assert lower_bound(problem) <= made.plan.lower_bound_s <= verify(problem, plan).penalty_s


def test_a_problem_without_deadlines_is_proven_at_once() -> None:
    problem = live(1, groups=6, instances=2, models=2)
    free = replace(problem, groups=tuple(replace(g, deadline_s=None) for g in problem.groups))
    made = certificate_of(free)
    assert (made.ended, made.plan.penalty_s, made.plan.lower_bound_s) == ("proven", 0.0, 0.0)
    empty = replace(problem, groups=(), instances=tuple(replace(i, queue=()) for i in problem.instances))
    assert certificate_of(empty).ended == "proven"
