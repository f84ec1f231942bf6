"""Warming up reaches what planning compiles, all of it, so that nothing is compiled while requests wait."""

import importlib
import itertools
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from numba import types

import qlm.planner.bound
import qlm.planner.exact
import qlm.planner.fast
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.bound import ascent
from qlm.planner.bound.lower_bound import EXACT_PAIRS_MAX, INSTANCE_PAIRS_MAX, lower_bound
from qlm.planner.exact.solve import solve_exact
from qlm.planner.fast.construct import append_all, fill_all, insert_all
from qlm.planner.fast.queues import true_cost
from qlm.planner.fast.search import anneal
from qlm.planner.fast.settings import SearchBudget
from qlm.planner.fast.solve import solve_fast
from qlm.planner.problem import GroupTime, Instance, Kind, ModelCost, PlannedGroup, Problem
from qlm.planner.warm_up import warm_up
from qlm.rct_estimator.normal import Normal

_PLANNED_AGAIN = """
import importlib, pkgutil
from dataclasses import replace

import qlm.planner.fast
from qlm.planner.policy.replanning import Replanner
from qlm.planner.warm_up import _problem, warm_up_fast

def signatures():
    parts = [importlib.import_module(f"qlm.planner.fast.{each.name}")
             for each in pkgutil.iter_modules(qlm.planner.fast.__path__)]
    return {(each.__module__, each.__name__, signature) for part in parts for each in vars(part).values()
            if hasattr(each, "signatures") for signature in each.signatures}

warm_up_fast()
before, planner, problem = signatures(), Replanner(), _problem(2)
for turn in range(4):
    plan = planner(problem)
    queued = tuple(replace(each, queue=tuple(plan.queues[each.id])) for each in problem.instances)
    problem = replace(problem, instances=queued, now_s=problem.now_s + 2.0)
print(len(signatures() - before))
"""
"""Counts what a controller's later plans would compile after warming up."""


def compiled() -> Iterator[tuple[str, Any]]:
    """All compiled functions of the planner by name."""
    for package in (qlm.planner.fast, qlm.planner.bound, qlm.planner.exact):
        for part in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            for name, each in vars(importlib.import_module(part.name)).items():
                if hasattr(each, "signatures") and each.__module__ == part.name:
                    yield f"{part.name}.{name}", each


def plain(signature: tuple[Any, ...]) -> tuple[Any, ...]:
    """Types of arguments; constants, for which callees may be compiled beside, count as what they are."""
    return tuple(map(types.unliteral, signature))


def compilations() -> dict[str, int]:
    """Return how often each was compiled in this process, and not loaded from the cache."""
    return {name: sum(each.stats.cache_misses.values()) for name, each in compiled()}


def problem(kinds: int, models: int, instances: int, groups: int, dated: str) -> Problem:
    """A fleet that keeps a model warm in turn, and groups of which none, some or all have a deadline."""
    names = [f"kind-{k}" for k in range(kinds)]
    served = [ModelId(f"model-{m}") for m in range(models)]
    cost = ModelCost(weights_bytes=1, swap_warm_s=1.0, swap_cold_s=3.0, unload_s=0.5)
    return Problem(
        now_s=0.0,
        kinds={name: Kind(host_memory_bytes=8, models=dict.fromkeys(served, cost)) for name in names},
        instances=tuple(
            Instance(
                id=InstanceId(f"i{i}"),
                kind=names[i % kinds],
                loaded_model=served[i % models] if i % 2 else None,
                warm_models=(served[(i + 1) % models],),
                busy=Normal(0.5, 0.1 * (i % 2)),
                queue=(GroupId(f"g{i}"),) if i % 3 == 1 and i < groups else (),
            )
            for i in range(instances)
        ),
        groups=tuple(
            PlannedGroup(
                id=GroupId(f"g{g}"),
                model=served[g % models],
                requests=3 + g % 7,
                deadline_s=None if dated == "none" or (dated == "some" and g % 2) else 3.0 + g,
                priority=g % 3 % 2,
                time={
                    name: GroupTime(service=Normal(2.0 + k, 0.3), tail=Normal(1.0, 0.1))
                    for k, name in enumerate(names)
                    if k == 0 or g % 4
                },
            )
            for g in range(groups)
        ),
        miss_weight_s=600,
        move_s=2,
    )


def test_it_compiles_the_search_and_the_bound() -> None:
    warm_up()
    kernels = [each for each in vars(ascent).values() if hasattr(each, "signatures")]
    assert kernels, "the ascent is compiled"
    for kernel in (append_all, fill_all, insert_all, anneal, true_cost):
        assert vars(kernel)["overloads"], kernel


def test_what_serving_warms_up_is_all_that_planning_again_needs() -> None:
    """In a process of its own: here, other tests have compiled it."""
    done = subprocess.run([sys.executable, "-c", _PLANNED_AGAIN], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0"], "functions that were first needed by a later plan"


_CERTIFIED = """
import importlib, pkgutil, sys, time
import qlm.planner.bound, qlm.planner.certify, qlm.planner.fast
from benchmarks.planner_live import live
from qlm.planner.certify.certify import certify
from qlm.planner.methods import Limits, plan_by
from qlm.planner.warm_up import warm_up_certified

def signatures():
    parts = [importlib.import_module(f"{package.__name__}.{each.name}")
             for package in (qlm.planner.bound, qlm.planner.certify, qlm.planner.fast)
             for each in pkgutil.iter_modules(package.__path__)]
    return {(each.__module__, each.__name__, signature) for part in parts for each in vars(part).values()
            if hasattr(each, "signatures") for signature in each.signatures}

warm_up_certified(sys.argv[1])
before, problem = signatures(), live(1, groups=12, instances=2, models=3)
plan = plan_by(sys.argv[1], problem, Limits(iterations=500 if sys.argv[1] == "fast" else None))
made = certify(problem, plan, stopwatch_s=time.perf_counter, time_limit_s=60.0)
print(made.rounds > 0, len(signatures() - before))
"""
"""Counts what a certified plan would compile after warming up."""


@pytest.mark.parametrize("method", ["fast", "edf"])
def test_certificates_warm_up_all_that_they_need(method: str) -> None:
    """Compiling took more than the time limit of a proof."""
    arguments = [sys.executable, "-c", _CERTIFIED, method]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "0"], "functions that were first needed by the certificate"


@pytest.mark.parametrize("kinds", [1, 2, 3])
def test_nothing_is_compiled_a_second_time_for_another_size_of_problem(kinds: int) -> None:
    """Numba compiles all of it again for arrays of another layout, which then takes 10 s of a plan."""
    warm_up()
    before = compilations()
    sizes = ((1, 6), (4, 9), (2, 70), (50, 100))
    assert 6 <= EXACT_PAIRS_MAX < 2 * 70 <= INSTANCE_PAIRS_MAX < 50 * 100, "each way to a bound"
    for models, (instances, groups), dated in itertools.product((1, 2, 4), sizes, ("none", "some", "all")):
        given = problem(kinds, models, instances, groups, dated)
        for in_order in (True, False):
            solve_fast(given, budget=SearchBudget(moves=50), in_order=in_order)
        lower_bound(given, iterations=2)
        if groups <= 6:
            solve_exact(given)
            solve_exact(given, scenarios=3)
    again = [name for name, each in compiled() if len(set(map(plain, each.signatures))) > 1]
    assert not again, "compiled more than once"
    assert compilations() == before, "not compiled by warming up"
