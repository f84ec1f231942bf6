"""Compile the planner ahead of time: `python -m qlm.planner.warm_up`, or for serving `... warm_up fast`.

The first plan on a machine takes some 20 s longer than later ones, unless this ran before, as in an image or
before tests. The compiled code is kept in `__pycache__` beside its source, or in NUMBA_CACHE_DIR.
"""

import sys
from dataclasses import replace
from itertools import count

from qlm.domain.errors import QlmError
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.extra import needs_solvers
from qlm.planner.problem import GroupTime, Instance, Kind, ModelCost, Plan, PlannedGroup, Problem
from qlm.rct_estimator.normal import Normal


def warm_up_fast() -> None:
    """Solve small problems by the fast method, as a controller does: from nothing, then from the plan before.

    Raises:
        QlmError: Its packages are not installed.
    """
    with needs_solvers("the plan generator"):
        from qlm.planner.fast.settings import SearchBudget
        from qlm.planner.fast.solve import solve_fast
    for instances in (1, 60):
        problem, budget = _problem(instances), SearchBudget(moves=100)
        plan = solve_fast(problem, budget=budget, in_order=True)
        solve_fast(_planned(problem, plan), budget=budget, in_order=True)


def warm_up() -> None:
    """Solve small problems by each method that compiles something.

    Raises:
        QlmError: Their packages are not installed.
    """
    warm_up_fast()
    _warm_up_bound()
    _warm_up_exact()


def warm_up_certified(method: str) -> None:
    """Do all that plans of a method and their certificates compile, so that it is in no time limit.

    Raises:
        QlmError: Their packages are not installed.
    """
    if method == "fast":
        warm_up_fast()
    elif method == "exact":
        _warm_up_exact()
    _warm_up_bound()
    with needs_solvers("the certificate"):
        from qlm.planner.certify.certify import certify
    problem = _problem(1)
    plan = Plan(queues={problem.instances[0].id: tuple(group.id for group in problem.groups)})
    # It stops at its limit at once, after the first prices of queues.
    certify(problem, plan, stopwatch_s=map(float, count()).__next__, time_limit_s=0.5)


def _warm_up_bound() -> None:
    with needs_solvers("planning"):
        from qlm.planner.bound.lower_bound import lower_bound
    for instances in (1, 60):
        lower_bound(_problem(instances))


def _warm_up_exact() -> None:
    with needs_solvers("planning"):
        from qlm.planner.exact.solve import solve_exact
    small = _problem(1)
    for scenarios in (None, 5):
        solve_exact(small, scenarios=scenarios)
    solve_exact(small, objective="paper")


def _planned(problem: Problem, plan: Plan) -> Problem:
    """Return a problem whose groups are where a plan has put them."""
    instances = tuple(replace(each, queue=tuple(plan.queues[each.id])) for each in problem.instances)
    return replace(problem, instances=instances)


def _problem(instances: int) -> Problem:
    """Return three groups of three models per instance of two kinds, with swaps and lateness."""
    models, kinds = [ModelId("a"), ModelId("b"), ModelId("c")], ["kind", "other"]
    cost = ModelCost(weights_bytes=1, swap_warm_s=1.0, swap_cold_s=2.0)
    time = GroupTime(service=Normal(4.0, 1.0), tail=Normal(1.0, 0.1))
    return Problem(
        now_s=0.0,
        kinds={name: Kind(host_memory_bytes=2, models=dict.fromkeys(models, cost)) for name in kinds},
        instances=tuple(Instance(id=InstanceId(f"i{i}"), kind=kinds[i % 2]) for i in range(instances)),
        groups=tuple(
            PlannedGroup(
                id=GroupId(f"g{g}"),
                model=models[g % 3],
                requests=8,
                deadline_s=2.0 + g % 5,
                time=dict.fromkeys(kinds, time),
            )
            for g in range(3 * instances)
        ),
    )


if __name__ == "__main__":
    try:
        (warm_up_fast if sys.argv[1:] == ["fast"] else warm_up)()
    except QlmError as error:
        sys.exit(str(error))
