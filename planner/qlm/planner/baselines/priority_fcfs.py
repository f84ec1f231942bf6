"""First come, first served within each priority, as servers with a priority field do."""

from qlm.planner.baselines.list_schedule import list_schedule
from qlm.planner.baselines.orders import by_urgency
from qlm.planner.problem import Plan, Problem


def plan_priority_fcfs(problem: Problem) -> Plan:
    """Order groups by priority, then by deadline, which stands for the arrival as in `plan_fcfs`.

    Unlike EDF it does not regroup by model.

    The plan places each placeable group on one queue, and does not depend on the input order.
    """
    return list_schedule(problem, sorted(problem.groups, key=by_urgency), method="priority-fcfs")
