"""First come, first served: what servers do today."""

from qlm.planner.baselines.list_schedule import list_schedule
from qlm.planner.baselines.orders import arrival
from qlm.planner.problem import Plan, Problem


def plan_fcfs(problem: Problem) -> Plan:
    """Order groups by their deadlines alone, which stand for arrivals here.

    Requests that are to be served first come, first served belong to classes whose objective is their
    arrival (`target_ms` 0): then a group's deadline is the arrival of its oldest request. Groups are
    neither regrouped by model nor reordered for anything else; priorities count for nothing.

    Args:
        problem: What waits, and the fleet.

    Returns:
        A plan with each placeable group on exactly one queue; deterministic, whatever the input order.
    """
    return list_schedule(problem, sorted(problem.groups, key=arrival), method="fcfs")
