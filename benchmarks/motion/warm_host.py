"""Plan without host memory, then price the plan with cold swaps: `python -m benchmarks.motion.warm_host`.

The planner counts the second use of a model as a warm swap, although nothing fits into a host memory of 0.
"""

import sys

from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.methods import Limits, plan_by
from qlm.planner.problem import GroupTime, Instance, Kind, ModelCost, Plan, PlannedGroup, Problem
from qlm.planner.verify.referee import verify
from qlm.rct_estimator.normal import Normal

COLD_S = 60.0
WARM_S = 2.0


def problem_of(swap_warm_s: float) -> Problem:
    """Build six groups of two models in turn on one instance without host memory."""
    cost = ModelCost(weights_bytes=26 * 10**9, swap_warm_s=swap_warm_s, swap_cold_s=COLD_S, unload_s=1.0)
    time = GroupTime(service=Normal(5.0), tail=Normal(5.0))
    models = [ModelId("A"), ModelId("B")]
    return Problem(
        now_s=0.0,
        kinds={"K": Kind(host_memory_bytes=0, models=dict.fromkeys(models, cost))},
        instances=(Instance(id=InstanceId("i0"), kind="K", loaded_model=models[0]),),
        groups=tuple(
            PlannedGroup(
                id=GroupId(f"g{number}"),
                model=models[number % 2],
                requests=20,
                deadline_s=20.0 + 25 * number,
                time={"K": time},
            )
            for number in range(6)
        ),
    )


def main() -> int:
    """Print the plan, what it expects, and what it attains if each swap is cold."""
    assumed, actual = problem_of(WARM_S), problem_of(COLD_S)
    plan = plan_by("fast", assumed, Limits())
    expected = verify(assumed, plan)
    print(f"plan {dict(plan.queues)}: expected attainment {expected.expected_attainment:.3f}")
    for row in expected.rows:
        swap = f"{row.swap} swap of {row.swap_s:g} s" if row.swap else "no swap"
        print(f"  {row.group}: {swap}, start {row.start.mean:.1f} s, deadline {row.deadline_s:g} s")
    _report("same plan, each swap cold", actual, plan)
    best = plan_by("fast", actual, Limits())
    _report(f"plan {dict(best.queues)}, made for cold swaps", actual, best)
    return 0


def _report(title: str, problem: Problem, plan: Plan) -> None:
    report = verify(problem, plan)
    print(f"{title}: attainment {report.expected_attainment:.3f}, penalty {report.penalty_s:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
