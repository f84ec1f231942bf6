"""First come, first served within each priority: what servers with a priority field do."""

from qlm.planner.baselines.list_schedule import list_schedule
from qlm.planner.baselines.orders import urgency
from qlm.planner.problem import Plan, Problem


def plan_priority_fcfs(problem: Problem) -> Plan:
    """Order groups by priority, then by deadline, which stands for the arrival as in `plan_fcfs`.

    Unlike EDF nothing is regrouped by model.

    Args:
        problem: What waits, and the fleet.

    Returns:
        A plan with each placeable group on exactly one queue; deterministic, whatever the input order.
    """
    return list_schedule(problem, sorted(problem.groups, key=urgency), method="priority-fcfs")
