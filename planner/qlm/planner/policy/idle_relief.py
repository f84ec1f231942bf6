"""Work for idle instances: a group goes to one that would start it sooner.

The search ignores small gains, and late or batch work costs nothing anywhere. So groups would stay behind a
long queue beside an idle instance. A move delays no other group where nothing waits at the idle instance, and
what stood behind the group starts sooner.

An instance with a queue is idle, too, if all of that needs another model and the agent defers the swap. It
takes groups of its own model that need a swap where they are, if that makes no more requests late.
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import Final

from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.policy.planned_queue import PlannedQueue
from qlm.planner.problem import Instance, Plan, PlannedGroup, Problem
from qlm.planner.verify.closed_form import group_lateness
from qlm.planner.verify.problem_index import ProblemIndex
from qlm.planner.verify.timeline import Served, timeline

LEAST_GAIN_S: Final = 0.1
"""Least time that a group must gain."""

LEAST_GAIN_SHARE: Final = 0.1
"""The same as a share of its wait: two estimates of nearly equal times may change places at the next plan."""

LATE_MORE_MAX: Final = 0.1
"""Growth of the expected late requests of what waits at an instance that is ignored: it is never quite 0."""


@dataclass(frozen=True, slots=True)
class _Idle:
    """An idle instance, and what waits there for another model."""

    instance: Instance
    queue: tuple[PlannedGroup, ...] = ()


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
    No group moves twice, and the own groups of an instance that took others may leave it.
    """
    if not any(plan.queues.values()) or not any(map(is_idle, problem.instances)):
        return plan
    index, queues = ProblemIndex.of(problem), dict(plan.queues)
    idle, settled = list(_idle(index, plan)), set[GroupId]()
    offers, changed = dict[InstanceId, list[_Transfer]](), tuple(queues)
    while idle:
        for source in changed:
            waiting = _waiting(index, source, queues[source])
            offers[source] = list(_transfers(problem, idle, waiting, settled))
        best = _best((each for source in queues for each in offers[source]), idle)
        if best is None:
            break
        moved = tuple(group.id for group in best.groups)
        queues[best.source] = tuple(id for id in queues[best.source] if id not in moved)
        queues[best.target] = (*moved, *queues.get(best.target, ()))
        settled.update(moved)
        changed = best.source, best.target
        idle = [each for each in idle if each.instance.id not in changed]
    return replace(plan, queues=queues)


def _best(offers: Iterable[_Transfer], idle: Iterable[_Idle]) -> _Transfer | None:
    """Return the transfer to one of these instances that gains most."""
    targets = {each.instance.id for each in idle}
    able = (each for each in offers if each.target in targets)
    return max(able, key=lambda each: each.gain_s, default=None)


def _idle(index: ProblemIndex, plan: Plan) -> Iterator[_Idle]:
    """Yield the idle instances in whose queue nothing waits for the model that they have."""
    for each in filter(is_idle, index.problem.instances):
        queue = tuple(index.groups[id] for id in plan.queues.get(each.id, ()) if id in index.groups)
        if not queue or (each.loaded_model and all(group.model != each.loaded_model for group in queue)):
            yield _Idle(each, queue)


def is_idle(instance: Instance) -> bool:
    """Return True if nothing runs or is loaded on an instance, as far as the problem tells."""
    return not instance.busy.mean and not instance.leave_s


def _waiting(index: ProblemIndex, id: InstanceId, queue: Iterable[GroupId]) -> tuple[Served, ...]:
    """Return the timeline of a queue; empty if the problem lacks the instance or all groups."""
    instance, groups = index.instances.get(id), [index.groups[each] for each in queue if each in index.groups]
    if instance is None:
        return ()
    return tuple(timeline(index.problem.kinds[instance.kind], instance, groups))


def _transfers(
    problem: Problem, idle: Sequence[_Idle], queue: Sequence[Served], settled: Container[GroupId]
) -> Iterator[_Transfer]:
    """Yield the transfers of groups of a queue that are not settled."""
    of_model: dict[ModelId, list[Served]] = {}
    for served in queue:
        if served.group.id not in settled:
            of_model.setdefault(served.group.model, []).append(served)
    for target in idle:
        for model, served_groups in of_model.items():
            if target.queue and not _spares_swap(target.instance, queue[0].instance, model):
                continue
            transfer = _transfer(problem, target, served_groups)
            if transfer is not None:
                yield transfer


def _spares_swap(target: Instance, source: Instance, model: ModelId) -> bool:
    return target.loaded_model == model != source.loaded_model


def _transfer(problem: Problem, target: _Idle, groups: Sequence[Served]) -> _Transfer | None:
    """Return the groups, from the last of these on, that start sooner on an idle instance."""
    instance, model = target.instance, groups[0].group.model
    kind = problem.kinds[instance.kind]
    if model not in kind.models or any(instance.kind not in each.group.time for each in groups):
        return None
    start_s = PlannedQueue(instance, kind, ()).start_after(0, model).mean
    gaining, gain_s = list[PlannedGroup](), 0.0
    for each in groups:
        gained_s = each.start.mean - start_s
        if gained_s > max(LEAST_GAIN_S, LEAST_GAIN_SHARE * each.start.mean):
            gaining.append(each.group)
            gain_s += gained_s * each.group.requests
            start_s += each.group.time[instance.kind].service.mean
    if not gaining or not _may_precede(problem, target, gaining):
        return None
    return _Transfer(groups[0].instance.id, instance.id, tuple(gaining), gain_s)


def _may_precede(problem: Problem, target: _Idle, groups: Sequence[PlannedGroup]) -> bool:
    """Return True if what waits at the instance can wait for these groups, too."""
    if not target.queue:
        return True
    if min(each.priority for each in target.queue) < max(each.priority for each in groups):
        return False
    now, after = (_late(problem, target, before) for before in ((), groups))
    return after <= now + LATE_MORE_MAX


def _late(problem: Problem, target: _Idle, before: Sequence[PlannedGroup]) -> float:
    """Return the expected late requests of what waits at an instance, behind further groups."""
    instance = target.instance
    served = tuple(timeline(problem.kinds[instance.kind], instance, (*before, *target.queue)))
    return fsum(each.late_requests for each in group_lateness(served[len(before) :], problem.now_s))
