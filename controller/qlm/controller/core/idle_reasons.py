"""Why a plan leaves an instance idle beside work: its costs, with that work elsewhere and there."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cache
from typing import Final

from qlm.agents.core.stats.gpu_time import BESIDE_WORK, GpuTime
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.problem import Plan, PlannedGroup, Problem
from qlm.planner.verify.referee import verify

EXPLAINED_NS: Final = 1_000_000_000
"""Shortest idle interval that is explained: a comparison prices two plans."""


PlanCost = Callable[[], float]
"""Returns the cost of the plan that is compared, seconds: computed once for all instances, if at all."""


def plan_cost(problem: Problem, plan: Plan) -> PlanCost:
    """Return the cost of a plan, to be computed when it is first needed."""
    return cache(lambda: verify(problem, plan).penalty_s)


def explain(time: GpuTime, problem: Problem, plan: Plan, instance: InstanceId, cost_s: PlanCost) -> bool:
    """Note the comparison at the present interval of an instance, once; True if there was one to make."""
    interval = time.present
    if interval is None or interval.plan or interval.use not in BESIDE_WORK:
        return False
    if interval.lasts_ns < EXPLAINED_NS:
        return False
    interval.plan = comparison(problem, plan, instance, interval.activity.waiting, cost_s)
    return True


def comparison(
    problem: Problem, plan: Plan, instance: InstanceId, models: Collection[ModelId], cost_s: PlanCost
) -> str:
    """Return the costs of a plan, as it is and with the first group of these models on this instance."""
    kind = next((each.kind for each in problem.instances if each.id == instance), None)
    if kind is None:
        return "the plan does not know the instance"
    groups = {group.id: group for group in problem.groups if group.model in models}
    if any(id in groups for id in plan.queues.get(instance, ())):
        return "the plan has some of it here"
    first = _first(plan, groups)
    if first is None:
        return "no plan has it yet"
    group, where = first
    planned = f"{group.requests} requests of {group.model} are planned for {where}"
    if kind not in group.time:
        return f"{planned}, and the model is not placed here"
    there_s = cost_s()
    here_s = verify(problem, _moved(plan, group, instance)).penalty_s
    return f"{planned}: the plan costs {there_s:.2f} s, and {here_s:.2f} s with them here"


def _first(plan: Plan, groups: Mapping[GroupId, PlannedGroup]) -> tuple[PlannedGroup, InstanceId] | None:
    """Return that of the groups which is nearest to the head of a queue, and its instance."""
    found = (
        (place, instance, id)
        for instance, queue in plan.queues.items()
        for place, id in enumerate(queue)
        if id in groups
    )
    first = min(found, default=None)
    return None if first is None else (groups[first[2]], first[1])


def _moved(plan: Plan, group: PlannedGroup, instance: InstanceId) -> Plan:
    queues = {id: tuple(each for each in queue if each != group.id) for id, queue in plan.queues.items()}
    return replace(plan, queues=queues | {instance: (group.id, *queues.get(instance, ()))})
