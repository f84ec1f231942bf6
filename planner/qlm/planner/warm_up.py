"""Compile what planning compiles, once: `python -m qlm.planner.warm_up`.

The first plan on a machine takes some 20 s longer than those after it, unless this ran before, as in an image
or before tests. The compiled code lies in `__pycache__` beside its source, or where NUMBA_CACHE_DIR says.
"""

from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.bound.lower_bound import lower_bound
from qlm.planner.exact.solve import solve_exact
from qlm.planner.fast.solve import Effort, solve_fast
from qlm.planner.problem import GroupTime, Instance, Kind, ModelCost, PlannedGroup, Problem
from qlm.rct_estimator.normal import Normal


def warm_up() -> None:
    """Solve small problems by each method that compiles something."""
    for instances in (1, 60):
        problem = _problem(instances)
        solve_fast(problem, effort=Effort(moves=100))
        lower_bound(problem)
    small = _problem(1)
    for scenarios in (None, 5):
        solve_exact(small, scenarios=scenarios)
    solve_exact(small, objective="paper")


def _problem(instances: int) -> Problem:
    """Three groups of two models per instance: enough for swaps, lateness and every way to a bound."""
    models = [ModelId("a"), ModelId("b")]
    cost = ModelCost(weights_bytes=1, swap_warm_s=1.0, swap_cold_s=2.0)
    time = {"kind": GroupTime(drain=Normal(4.0, 1.0), tail=Normal(1.0, 0.1))}
    return Problem(
        now_s=0.0,
        kinds={"kind": Kind(host_memory_bytes=2, models=dict.fromkeys(models, cost))},
        instances=tuple(Instance(id=InstanceId(f"i{i}"), kind="kind") for i in range(instances)),
        groups=tuple(
            PlannedGroup(
                id=GroupId(f"g{g}"), model=models[g % 2], requests=8, deadline_s=2.0 + g % 5, time=time
            )
            for g in range(3 * instances)
        ),
    )


if __name__ == "__main__":
    warm_up()
