"""First come, first served, as inference servers do today."""

from qlm.planner.baselines.list_schedule import list_schedule
from qlm.planner.baselines.orders import by_deadline
from qlm.planner.problem import Plan, Problem


def plan_fcfs(problem: Problem) -> Plan:
    """Order groups by their deadlines alone, which stand for arrivals here.

    For first come, first served, requests are put into classes whose objective is their arrival (`target_ms`
    0): then the deadline of a group is the arrival of its oldest request. Groups are not regrouped by model,
    and priorities are ignored.

    The plan places each placeable group on one queue, and does not depend on the input order.
    """
    return list_schedule(problem, sorted(problem.groups, key=by_deadline), method="fcfs")
