"""Work for idle instances: a group goes to one that would start it sooner.

The search ignores small gains, and late or batch work costs nothing anywhere. So groups would stay behind a
long queue beside an idle instance. A move delays no other group: nothing waits at the idle instance, and what
stood behind the group starts sooner.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.policy.planned_queue import PlannedQueue
from qlm.planner.problem import Instance, Plan, PlannedGroup, Problem
from qlm.planner.verify.problem_index import ProblemIndex
from qlm.planner.verify.timeline import Served, timeline

LEAST_GAIN_S: Final = 0.1
"""Least time that a group must gain."""

LEAST_GAIN_SHARE: Final = 0.1
"""The same as a share of its wait: two estimates of nearly equal times may change places at the next plan."""


@dataclass(frozen=True, slots=True)
class _Transfer:
    """Groups of one model that go to an idle instance, and the request-seconds that they gain."""

    source: InstanceId
    target: InstanceId
    groups: tuple[PlannedGroup, ...]
    gain_s: float


def relieve_idle(problem: Problem, plan: Plan) -> Plan:
    """Return a plan in which no instance is idle while a group waits elsewhere that it would start sooner.

    All groups of a model that gain by it go together: of several idle instances only one swaps for them.
    """
    idle = [each for each in problem.instances if is_idle(each) and not plan.queues.get(each.id)]
    if not idle or not any(plan.queues.values()):
        return plan
    index, queues, sources = ProblemIndex.of(problem), dict(plan.queues), list(plan.queues)
    while idle:
        filled = _filled(index, {id: queues[id] for id in sources})
        waiting = [timeline(problem.kinds[each.kind], each, queue) for each, queue in filled]
        best = max(_transfers(problem, idle, waiting), key=lambda each: each.gain_s, default=None)
        if best is None:
            break
        moved = tuple(group.id for group in best.groups)
        queues[best.source] = tuple(id for id in queues[best.source] if id not in moved)
        queues[best.target] = moved
        sources.remove(best.target)
        idle = [each for each in idle if each.id != best.target]
    return replace(plan, queues=queues)


def is_idle(instance: Instance) -> bool:
    """Return True if nothing runs or is loaded on an instance, as far as the problem tells."""
    return not instance.busy.mean and not instance.leave_s


def _filled(
    index: ProblemIndex, queues: Mapping[InstanceId, Sequence[GroupId]]
) -> Iterator[tuple[Instance, Sequence[PlannedGroup]]]:
    for id, queue in queues.items():
        groups = [index.groups[name] for name in queue if name in index.groups]
        if id in index.instances and groups:
            yield index.instances[id], groups


def _transfers(
    problem: Problem, idle: Sequence[Instance], waiting: Iterable[Iterable[Served]]
) -> Iterator[_Transfer]:
    for queue in waiting:
        of_model: dict[ModelId, list[Served]] = {}
        for served in queue:
            of_model.setdefault(served.group.model, []).append(served)
        for target in idle:
            for served_groups in of_model.values():
                transfer = _transfer(problem, target, served_groups)
                if transfer is not None:
                    yield transfer


def _transfer(problem: Problem, target: Instance, groups: Sequence[Served]) -> _Transfer | None:
    """Return the groups, from the last of these on, that start sooner on an idle instance."""
    kind, model = problem.kinds[target.kind], groups[0].group.model
    if model not in kind.models or any(target.kind not in each.group.time for each in groups):
        return None
    start_s = PlannedQueue(target, kind, ()).start_after(0, model).mean
    gaining, gain_s = list[PlannedGroup](), 0.0
    for each in groups:
        gained_s = each.start.mean - start_s
        if gained_s > max(LEAST_GAIN_S, LEAST_GAIN_SHARE * each.start.mean):
            gaining.append(each.group)
            gain_s += gained_s * each.group.requests
            start_s += each.group.time[target.kind].service.mean
    if not gaining:
        return None
    return _Transfer(groups[0].instance.id, target.id, tuple(gaining), gain_s)
