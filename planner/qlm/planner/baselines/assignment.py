"""Placement without service times: a rule picks the instance, and each group goes to the end of its queue."""

from collections.abc import Callable, Iterable

from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.problem import Plan, PlannedGroup, Problem

Choose = Callable[[PlannedGroup, tuple[InstanceId, ...]], InstanceId]
"""Picks one of the instances that run a group, sorted by id and never empty."""


def assign(problem: Problem, order: Iterable[PlannedGroup], choose: Choose, *, method: str) -> Plan:
    """Append each group to the queue of the instance chosen for it.

    Args:
        problem: Groups and fleet.
        order: The groups, in the order of service.
        choose: Picks the instance.
        method: Name of the method in the plan.

    Returns:
        A plan with each placeable group on exactly one queue.
    """
    eligible = _EligibleInstances(problem)
    queues: dict[InstanceId, list[GroupId]] = {id: [] for id in sorted(i.id for i in problem.instances)}
    unplaceable: list[GroupId] = []
    for group in order:
        able = eligible.of(group)
        if able:
            queues[choose(group, able)].append(group.id)
        else:
            unplaceable.append(group.id)
    return Plan(
        queues={id: tuple(queue) for id, queue in queues.items()},
        unplaceable=tuple(sorted(unplaceable)),
        method=method,
    )


class _EligibleInstances:
    """Instances that run a group, computed once per model and set of kinds."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._known: dict[tuple[ModelId, frozenset[str]], tuple[InstanceId, ...]] = {}

    def of(self, group: PlannedGroup) -> tuple[InstanceId, ...]:
        key = (group.model, frozenset(group.time))
        if key not in self._known:
            problem = self._problem
            kinds = {
                kind for kind in key[1] & problem.kinds.keys() if group.model in problem.kinds[kind].models
            }
            self._known[key] = tuple(sorted(i.id for i in problem.instances if i.kind in kinds))
        return self._known[key]
