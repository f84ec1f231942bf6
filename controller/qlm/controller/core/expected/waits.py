"""Time until each group of a plan has left its queue, as agents will serve it, before any correction."""

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Final

from qlm.agents.core.scheduling.visits.backlog import Patience
from qlm.controller.core.estimating.planning_times import waiting_requests
from qlm.controller.core.estimating.snapshot import InstanceSnapshot, Snapshot
from qlm.controller.core.expected.visits import ArrivalSlacks, VisitWalk, WaitingPart
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import GroupId, ModelId
from qlm.domain.values import value
from qlm.planner.problem import Plan, Problem
from qlm.planner.verify.problem_index import ProblemIndex
from qlm.planner.verify.timeline import Served, serve
from qlm.rct_estimator.forecast_errors import Turn
from qlm.rct_estimator.normal import Normal

DECISIONS_MAX: Final = 200
"""Most decisions about visits that one forecast foresees, 0.1 to 0.5 ms each. Instances with the shortest
queues come first; groups beyond have the times of the plan."""


@value
class ExpectedWait:
    """Wait of one group.

    Attributes:
        planned: Time until its last request leaves the queue, by the plan.
        leaves: The same as agents serve it.
        answer: From there to the end of its answer.
        turn: What it waits for.
    """

    planned: Normal
    leaves: Normal
    answer: Normal
    turn: Turn

    @property
    def ends(self) -> Normal:
        """Time until its last request has ended."""
        return self.leaves + self.answer


def expected_waits(
    snapshot: Snapshot,
    problem: Problem,
    plan: Plan,
    patience: Patience | None,
    wanted: Container[GroupId] | None = None,
) -> dict[GroupId, ExpectedWait]:
    """Return the waits of the groups of a plan.

    Args:
        snapshot: Origin of the problem.
        problem: The planning problem.
        plan: A feasible plan of it.
        patience: That of agents that serve in visits; None if they follow their queue.
        wanted: The groups; None for all of them.
    """
    served = serve(ProblemIndex.of(problem), plan)
    classes = {group.id: group.cls for group, _ in snapshot.groups}
    visited_s = {} if patience is None else _visited_s(snapshot, problem, served, patience)
    waits: dict[GroupId, ExpectedWait] = {}
    waiting = waiting_requests(snapshot)
    for each in served:
        id = each.group.id
        if wanted is not None and id not in wanted:
            continue
        planned = each.leaves()
        waits[id] = ExpectedWait(
            planned=planned,
            leaves=_moved(planned, visited_s.get(id)),
            answer=_answer(snapshot, each, classes.get(id), waiting),
            turn=_turn(snapshot.instances[each.instance.id], each.group.model),
        )
    return waits


def _turn(instance: InstanceSnapshot, model: ModelId) -> Turn:
    """Return what a waiting group waits for: its instance may leave any model that it has not alone."""
    if instance.loaded != model:
        return Turn.SWAP
    return Turn.AWAKE if len(instance.status.models) > 1 else Turn.ALONE


def _answer(
    snapshot: Snapshot, served: Served, cls: RequestClass | None, waiting: Mapping[ModelId, int]
) -> Normal:
    """Return the time from a batch slot to the end of an answer; a tail may end with the first token.

    The batch is that of the tail: a group joins what runs, or comes with all that waits for its model.
    """
    at = snapshot.instances[served.instance.id]
    if cls is None or not cls.about_first_token:
        return served.time.whole_tail
    entry = snapshot.state.times.entries.get((cls, at.status.accelerator))
    if entry is None:
        return served.time.whole_tail
    joined = at.status.running + at.status.parked + served.group.requests
    batch = joined if at.loaded == cls.model else waiting[cls.model]
    return entry.ends.at(batch).scaled(at.correction.factor)


def _moved(planned: Normal, to_s: float | None) -> Normal:
    return planned if to_s is None else Normal(to_s, planned.var)


def _visited_s(
    snapshot: Snapshot, problem: Problem, served: Sequence[Served], patience: Patience
) -> dict[GroupId, float]:
    """Return when groups leave the queues of instances that have requests of several models."""
    groups = {group.id: group for group, _ in snapshot.groups}
    queues = defaultdict[str, list[Served]](list)
    for each in served:
        queues[each.instance.id].append(each)
    found: dict[GroupId, float] = {}
    left = DECISIONS_MAX
    for queue in sorted(queues.values(), key=len):
        instance = queue[0].instance
        if {each.group.model for each in queue} == {instance.loaded_model}:
            continue
        parts = _parts(queue, groups, snapshot.now_ns)
        arrivals = _arrivals(snapshot, snapshot.instances[instance.id])
        walk = VisitWalk(problem.kinds[instance.kind], instance, parts, patience, arrivals)
        left -= walk.run(left)
        found |= {each.group.id: max(walk.now_s, each.leaves().mean) for each in queue} | walk.leaves_s
    return found


def _parts(queue: Sequence[Served], groups: Mapping[GroupId, Group], now_ns: int) -> Iterator[WaitingPart]:
    for each in queue:
        group = groups.get(each.group.id)
        if group is None or group.head_arrival_ns is None:
            continue
        last_ns = max(group.head_arrival_ns, group.last_arrival_ns or now_ns)
        yield WaitingPart(
            id=group.id,
            cls=group.cls,
            left=each.group.requests,
            service_s=each.time.service.mean / each.group.requests,
            lead_s=each.time.tail.mean,
            first_s=(group.head_arrival_ns - now_ns) / 1e9,
            last_s=(last_ns - now_ns) / 1e9,
        )


def _arrivals(snapshot: Snapshot, instance: InstanceSnapshot) -> ArrivalSlacks:
    kind, entries = instance.status.accelerator, snapshot.state.times.entries
    found = defaultdict[ModelId, list[tuple[float, float]]](list)
    for cls, arrivals in snapshot.state.arrivals.items():
        entry = entries.get((cls, kind))
        if entry is None or cls.due_ms is None or not snapshot.serving.get(cls.model):
            continue
        lead_s = 0.0 if cls.about_first_token else entry.answer.mean
        slack_s = max(0.0, cls.due_ms / 1e3 - lead_s)
        found[cls.model].append((arrivals.accepted_rps / snapshot.serving[cls.model], slack_s))
    return found
