"""The planning methods behind their names."""

import importlib
import itertools
import random
import sys
from dataclasses import replace
from typing import Any

import pytest

from qlm.domain.errors import InvalidValueError, QlmError
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.limits import ON_TIME_S, SEED_MAX
from qlm.planner.method_names import DEFAULT_METHOD, METHOD_NAMES
from qlm.planner.methods import METHODS, Limits, method, plan_by, with_bound
from qlm.planner.problem import (
    GroupTime,
    Instance,
    Kind,
    ModelCost,
    Objective,
    Plan,
    PlannedGroup,
    Problem,
)
from qlm.planner.verify.referee import verify
from qlm.rct_estimator.normal import Normal
from support.plans import random_problem

QUICK = Limits(iterations=2000, time_limit_s=None)


def test_all_methods_are_there() -> None:
    assert tuple(METHODS) == METHOD_NAMES
    assert DEFAULT_METHOD == "fast"
    assert all(METHODS[name].name == name and METHODS[name].about for name in METHODS)


@pytest.mark.parametrize("name", METHOD_NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_every_method_gives_a_feasible_plan(name: str, seed: int) -> None:
    problem = random_problem(seed, groups=7, priorities=2 if METHODS[name].keeps_priorities else 1)
    plan = with_bound(problem, plan_by(name, problem, QUICK))
    assert verify(problem, plan).violations == ()
    assert plan.lower_bound_s is not None
    assert plan.method.startswith(name)


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_no_method_depends_on_the_order_of_the_input(name: str) -> None:
    problem = random_problem(11, groups=7, instances=3)
    rng = random.Random(1)
    mixed = replace(
        problem,
        groups=tuple(rng.sample(problem.groups, len(problem.groups))),
        instances=tuple(rng.sample(problem.instances, len(problem.instances))),
        kinds=dict(reversed(problem.kinds.items())),
    )
    assert unstamped(plan_by(name, mixed, QUICK)) == unstamped(plan_by(name, problem, QUICK))


def unstamped(plan: Plan) -> Plan:
    return replace(plan, solve_s=None)


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_the_largest_seed_is_one(name: str) -> None:
    problem = random_problem(1, groups=4)
    plan = plan_by(name, problem, replace(QUICK, seed=SEED_MAX))
    assert verify(problem, plan).violations == ()


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_a_time_limit_gives_a_feasible_plan(name: str) -> None:
    problem = random_problem(1, groups=4)
    ticks = itertools.count()
    limits = Limits(time_limit_s=0.001, stopwatch_s=lambda: next(ticks) * 0.001)
    assert verify(problem, plan_by(name, problem, limits)).violations == ()


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_nothing_to_do_and_nobody_to_do_it(name: str) -> None:
    full = random_problem(1, groups=4)
    nobody = replace(full, instances=())
    plan = plan_by(name, nobody, QUICK)
    assert plan.queues == {} and sorted(plan.unplaceable) == sorted(group.id for group in full.groups)
    assert verify(nobody, plan).violations == ()
    nothing = replace(full, groups=())
    plan = plan_by(name, nothing, QUICK)
    assert not any(plan.queues.values()) and plan.unplaceable == ()
    assert (plan.penalty_s, plan.expected_attainment) == (0.0, 1.0)


def test_exact_minimises_what_it_is_asked_for() -> None:
    problem = random_problem(5, groups=6)
    objectives: tuple[Objective, ...] = ("requests", "paper")
    for objective in objectives:
        plan = plan_by("exact", problem, replace(QUICK, objective=objective))
        best = verify(problem, plan, objective=objective).penalty_s
        assert plan.penalty_s == best
        assert plan.lower_bound_s == pytest.approx(best, rel=1e-5)
        for name in METHOD_NAMES[2:]:
            other = plan_by(name, problem, replace(QUICK, objective=objective))
            assert other.penalty_s is not None and other.penalty_s >= best - 1e-6


@pytest.mark.parametrize(("late_s", "missed"), [(0.0, 0), (0.5 * ON_TIME_S, 0), (3 * ON_TIME_S, 1)])
@pytest.mark.parametrize("requests", [1, 20])
@pytest.mark.parametrize("name", ["exact", "fast"])
def test_method_bound_and_referee_agree_on_what_is_late(
    name: str, requests: int, late_s: float, missed: int
) -> None:
    """The last request of a group whose times are certain ends that long after its deadline."""
    time = GroupTime(service=Normal(10.0), tail=Normal(0.5))
    cost = ModelCost(weights_bytes=1, swap_warm_s=1.0, swap_cold_s=1.0)
    group = PlannedGroup(
        id=GroupId("g"), model=ModelId("m"), requests=requests, deadline_s=10.5 - late_s, time={"k": time}
    )
    problem = Problem(
        now_s=0.0,
        kinds={"k": Kind(host_memory_bytes=100, models={ModelId("m"): cost})},
        instances=(Instance(id=InstanceId("i"), kind="k", loaded_model=ModelId("m")),),
        groups=(group,),
    )
    plan = with_bound(problem, plan_by(name, problem, QUICK))
    report = verify(problem, plan)
    assert (report.violations, report.late_requests, report.rows[0].p_last_late) == ((), missed, missed)
    assert plan.penalty_s == pytest.approx(600.0 * missed, abs=1e-4)
    assert plan.lower_bound_s is not None and plan.lower_bound_s <= report.penalty_s + 1e-6
    if name == "exact":
        assert plan.lower_bound_s == pytest.approx(600.0 * missed, abs=1e-3)


def test_a_bound_on_samples_or_on_another_objective_is_not_shown() -> None:
    problem = random_problem(5, groups=5)
    assert plan_by("exact", problem, QUICK).lower_bound_s is not None
    assert plan_by("exact", problem, replace(QUICK, scenarios=3)).lower_bound_s is None
    assert plan_by("fast", problem, replace(QUICK, objective="paper")).lower_bound_s is None


def test_a_bound_that_is_there_stays() -> None:
    problem = random_problem(5, groups=5)
    assert with_bound(problem, Plan(queues={}, lower_bound_s=3.0)).lower_bound_s == 3.0


def test_an_unknown_method_is_named() -> None:
    with pytest.raises(InvalidValueError, match="method is 'magic'; expected one of fast, exact, edf, "):
        method("magic")


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"time_limit_s": 0.0}, "time_limit_s is 0.0; expected at least 0.001"),
        ({"time_limit_s": 1.0}, "stopwatch_s is None; expected a clock to keep the time limit by"),
        ({"time_limit_s": float("nan")}, "time_limit_s is nan; expected a finite number"),
        ({"time_limit_s": 1e9}, "time_limit_s is 1000000000.0; expected at most 86400"),
        ({"iterations": -1}, "iterations is -1; expected at least 0"),
        ({"seed": -1}, "seed is -1; expected at least 0"),
        ({"seed": 2**63}, f"seed is {2**63}; expected at most {2**63 - 1}"),
        ({"scenarios": 0}, "scenarios is 0; expected at least 1"),
        ({"scenarios": 10**6}, "scenarios is 1000000; expected at most 1000"),
    ],
)
def test_limits_have_limits(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        Limits(**limits)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [("fast", "qlm.planner.fast.solve", "numba"), ("exact", "qlm.planner.exact.solve", "pyomo")],
)
def test_a_package_that_is_missing_is_named(
    name: str, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.import_module(module)

    class Absent:
        """Finds nothing where the solver is, as if what it imports were not installed."""

        def find_spec(self, wanted: str, path: object = None, target: object = None) -> None:
            if wanted == module:
                raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    with pytest.raises(QlmError, match=f"method {name} needs {package}: pip install -e '.\\[planner\\]'"):
        plan_by(name, random_problem(1), QUICK)
    monkeypatch.setitem(sys.modules, module, real)
