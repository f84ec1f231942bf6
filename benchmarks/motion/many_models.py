"""Plan for 63 and for 64 waiting models: at 64 the plan generator has raised, and its controller died.

`python -m benchmarks.motion.many_models`; `scenarios/many-models.yaml` shows the same in `qlm serve`.
"""

import sys

from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.policy.replanning import Replanner
from qlm.planner.problem import GroupTime, Instance, Kind, ModelCost, PlannedGroup, Problem
from qlm.rct_estimator.normal import Normal


def problem_of(models: int) -> Problem:
    """Build a problem of one instance and one waiting group per model."""
    names = [ModelId(f"m{number:02d}") for number in range(models)]
    cost = ModelCost(weights_bytes=1, swap_warm_s=1.0, swap_cold_s=9.0)
    time = GroupTime(service=Normal(1.0, 0.1), tail=Normal(1.0, 0.1))
    return Problem(
        now_s=0.0,
        kinds={"A100": Kind(host_memory_bytes=0, models=dict.fromkeys(names, cost))},
        instances=(Instance(id=InstanceId("i0"), kind="A100", loaded_model=names[0]),),
        groups=tuple(
            PlannedGroup(
                id=GroupId(f"g-{name}"), model=name, requests=1, deadline_s=60.0, time={"A100": time}
            )
            for name in names
        ),
    )


def main() -> int:
    """Plan both problems and print the method, or the error."""
    for models in (63, 64):
        try:
            outcome = f"planned by {Replanner()(problem_of(models)).method}"
        except Exception as error:  # the defect is that any error gets here
            outcome = f"{type(error).__name__}: {error}"
        print(f"{models} models: {outcome}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
