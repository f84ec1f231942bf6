"""Scale-up: the fewest instances whose addition would repair the misses of a plan.

Some requests miss their deadline with any fleet: they would be late alone on an idle instance, or they are
late in a plan with `ADDED_MAX` more instances. The others can be repaired. The count of each kind is found
in two steps: the relaxation of the lower bound gives a least count, then plans of the enlarged fleet show
from which count on a plan does repair. So a plan has shown that the recommendation suffices.
"""

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from qlm.domain.ids import InstanceId, ModelId
from qlm.planner.arrays import problem_arrays
from qlm.planner.bound.lower_bound import bound_of
from qlm.planner.policy.planned_queue import PlannedQueue
from qlm.planner.problem import Instance, Plan, PlannedGroup, Problem, ScaleUp
from qlm.planner.verify.closed_form import group_lateness
from qlm.planner.verify.problem_index import ProblemIndex
from qlm.planner.verify.timeline import Served, serve
from qlm.rct_estimator.normal import NOTHING

ADDED_MAX: Final = 256
"""Most instances of one kind that are added."""

PLANS_MAX: Final = 10
"""Most plans that are made per kind."""

REPAIRED_SHARE: Final = 0.01
"""Largest share of repairable requests with a deadline that may still miss it in a repaired plan."""

PASSES: Final = 5
"""Passes of the dual ascent on larger problems."""

Method = Callable[[Problem], Plan]
"""Planning method of the enlarged fleet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """Effect of adding instances of one kind.

    Attributes:
        unrepairable_requests: Expected misses even with `ADDED_MAX` of them.
        at_least: Lower bound on the count: with fewer, every plan misses more than these and
            `REPAIRED_SHARE`.
        count: Count with which a plan was found that does not.
        late_requests: Expected misses of that plan.
    """

    kind: str
    unrepairable_requests: float
    at_least: int
    count: int
    late_requests: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Recommended scale-up.

    Attributes:
        late_requests: Expected misses of the present plan, those of unplaceable requests included.
        unrepairable_requests: Expected misses even with `ADDED_MAX` more of each kind.
        late_after: Expected misses with the recommended instances.
        scale_up: The fewest instances found: of one kind if that is enough, else of several; empty if nothing
            can be repaired.
        repairs: Effect of each kind alone, by name; empty if nothing is to be repaired.
    """

    late_requests: float
    unrepairable_requests: float
    late_after: float
    scale_up: tuple[ScaleUp, ...]
    repairs: tuple[Repair, ...]


def advise(problem: Problem, plan: Plan, method: Method, kinds: Collection[str] | None = None) -> Advice:
    """Search for the fewest instances whose addition would repair the misses of a plan.

    An added instance is idle and has no model loaded. Its host memory has the models that fit, those with the
    most waiting requests first. Groups that neither the present fleet nor an added instance runs are late
    with any.

    Args:
        problem: The problem.
        plan: A feasible plan of it.
        method: Plans the enlarged fleets: at most `PLANS_MAX` + 1 times per kind, and as often again if
            several kinds are needed.
        kinds: Kinds of which instances may be added; all if None.
    """
    present, late = ProblemIndex.of(problem), late_requests(problem, plan)
    allowed = problem.kinds if kinds is None else kinds
    wanted = [
        g for g in problem.groups if present.placeable(g) or any(present.kind_runs(k, g) for k in allowed)
    ]
    kinds = sorted(kind for kind in allowed if any(present.kind_runs(kind, g) for g in wanted))
    placed = {group.id for group in wanted}
    nowhere = _with_deadline(group for group in problem.groups if group.id not in placed)
    search = _Search(replace(problem, groups=tuple(wanted)), method, REPAIRED_SHARE * _with_deadline(wanted))
    floor = search.floor(kinds)
    least = min(late, floor + nowhere)
    if late - nowhere <= floor + search.slack:
        return Advice(
            late_requests=late, unrepairable_requests=least, late_after=late, scale_up=(), repairs=()
        )
    repairs = tuple(search.repair(kind) for kind in kinds)
    enough = [each for each in repairs if each.late_requests <= floor + search.slack]
    best = min(enough, key=lambda each: (each.count, each.kind), default=None)
    counts = {each.kind: each.count for each in repairs}
    counts = {best.kind: best.count} if best else search.reduced(counts, floor)
    return Advice(
        late_requests=late,
        unrepairable_requests=least,
        late_after=nowhere + (best.late_requests if best else search.late(counts)),
        scale_up=tuple(ScaleUp(kind=kind, count=count) for kind, count in sorted(counts.items()) if count),
        repairs=repairs,
    )


def late_requests(problem: Problem, plan: Plan) -> float:
    """Return the expected number of requests that miss their deadline in a plan; those not placed do."""
    served = serve(ProblemIndex.of(problem), plan)
    placed = {each.group.id for each in served}
    missing = _with_deadline(group for group in problem.groups if group.id not in placed)
    return missing + math.fsum(each.late_requests for each in group_lateness(served, problem.now_s))


def _with_deadline(groups: Iterable[PlannedGroup]) -> int:
    """Return the number of requests with a deadline."""
    return sum(group.requests for group in groups if group.deadline_s is not None)


def enlarged(problem: Problem, counts: Mapping[str, int]) -> Problem:
    """Add instances of each kind to the fleet; see `advise`."""
    taken = {instance.id for instance in problem.instances}
    added = []
    for kind, count in sorted(counts.items()):
        ids, warm = _free_ids(kind, taken), _warm(problem, kind)
        added += [Instance(id=next(ids), kind=kind, warm_models=warm) for _ in range(count)]
    return replace(problem, instances=(*problem.instances, *added))


def as_loaded(problem: Problem) -> Problem:
    """Return the problem with instances that load a model, or have none, as ready as added ones.

    They are as new as one that would be added now, which would have to load, too. The problem itself if there
    are none. An instance loads if it is busy and nothing runs there, as far as the problem tells.
    """
    instances = tuple(_as_loaded(problem, each) for each in problem.instances)
    return problem if instances == problem.instances else replace(problem, instances=instances)


def _as_loaded(problem: Problem, instance: Instance) -> Instance:
    if instance.loaded_model is None:
        return replace(instance, busy=NOTHING, warm_models=_warm(problem, instance.kind), unloaded_models=())
    return instance if instance.leave_s else replace(instance, busy=NOTHING)


def _free_ids(kind: str, taken: set[InstanceId]) -> Iterator[InstanceId]:
    ids = (InstanceId(f"added-{kind}-{at}") for at in itertools.count(1))
    return (id for id in ids if id not in taken)


def _warm(problem: Problem, kind: str) -> tuple[ModelId, ...]:
    """Return the models that fit into the host memory of the kind, those with the most requests last."""
    costs, waiting = problem.kinds[kind], dict.fromkeys(problem.kinds[kind].models, 0)
    for group in problem.groups:
        if group.model in waiting and kind in group.time:
            waiting[group.model] += group.requests
    free, warm = costs.host_memory_bytes, []
    for model in sorted(waiting, key=lambda m: (-waiting[m], m)):
        cost = costs.models[model]
        if waiting[model] and cost.weights_bytes + cost.process_bytes <= free:
            free -= cost.weights_bytes + cost.process_bytes
            warm.append(model)
    return tuple(reversed(warm))


def _alone(problem: Problem, kinds: Sequence[str]) -> float:
    """Return the expected misses with each group alone where it would end first, added instances included."""
    index = ProblemIndex.of(enlarged(problem, dict.fromkeys(kinds, 1)))
    queues = [PlannedQueue(i, problem.kinds[i.kind], ()) for i in index.instances.values()]
    dated = [group for group in problem.groups if group.deadline_s is not None]
    first = [_first(group, queues, index) for group in dated if index.placeable(group)]
    missing = _with_deadline(group for group in dated if not index.placeable(group))
    return missing + math.fsum(each.late_requests for each in group_lateness(first, problem.now_s))


def _first(group: PlannedGroup, queues: Sequence[PlannedQueue], index: ProblemIndex) -> Served:
    alone = [queue.alone(group) for queue in queues if index.runs(queue.instance, group)]
    return min(alone, key=lambda served: served.completion().mean)


@dataclass(frozen=True, slots=True)
class _Search:
    """Search for counts with which a method's plan misses no more than a floor and some slack."""

    problem: Problem
    method: Method
    slack: float

    def late(self, counts: Mapping[str, int]) -> float:
        """Return the misses of the plan of an enlarged fleet."""
        fleet = enlarged(self.problem, counts)
        return late_requests(fleet, self.method(fleet))

    def floor(self, kinds: Sequence[str]) -> float:
        """Return the misses that no addition of the kinds repairs."""
        return max(_alone(self.problem, kinds), self.late(dict.fromkeys(kinds, ADDED_MAX)))

    def repair(self, kind: str) -> Repair:
        """Search for the fewest of one kind that repair what this kind can repair."""
        floor = self.floor([kind])
        at_least = _at_least(self.problem, kind, floor + self.slack)
        tried: dict[int, float] = {}

        def repairs(count: int) -> bool:
            tried[count] = self.late({kind: count})
            return tried[count] <= floor + self.slack

        count = _smallest(repairs, at_least)
        late = tried.get(count, floor)
        return Repair(
            kind=kind, unrepairable_requests=floor, at_least=at_least, count=count, late_requests=late
        )

    def reduced(self, counts: dict[str, int], floor: float) -> dict[str, int]:
        """Reduce the counts of several kinds, one kind after the other, while the plan still repairs."""

        def repairs(kind: str, count: int) -> bool:
            return self.late({**counts, kind: count}) <= floor + self.slack

        while not repairs(*next(iter(counts.items()))):
            if all(count >= ADDED_MAX for count in counts.values()):
                break
            counts = {kind: min(ADDED_MAX, 2 * count) for kind, count in counts.items()}
        for kind in sorted(counts):
            counts[kind] = _between(partial(repairs, kind), -1, counts[kind], PLANS_MAX)
        return counts


def _smallest(repairs: Callable[[int], bool], at_least: int) -> int:
    """Search for the smallest count with `PLANS_MAX` calls, by doubling, then bisection; else `ADDED_MAX`."""
    below, count, step = at_least - 1, at_least, 1
    for calls in range(1, PLANS_MAX + 1):
        if count >= ADDED_MAX or repairs(count):
            return _between(repairs, below, count, PLANS_MAX - calls)
        below, count, step = count, min(ADDED_MAX, count + step), 2 * step
    return ADDED_MAX


def _between(repairs: Callable[[int], bool], below: int, count: int, calls: int) -> int:
    """Bisect between `below`, which is too few, and `count`, which is enough, while calls are left."""
    while count - below > 1 and calls > 0:
        middle = (below + count) // 2
        calls -= 1
        if repairs(middle):
            count = middle
        else:
            below = middle
    return count


def _at_least(problem: Problem, kind: str, allowed: float) -> int:
    """Return the smallest count for which the relaxation allows no more misses, at most `ADDED_MAX`."""
    below, count = 0, ADDED_MAX
    while count - below > 1:
        middle = (below + count) // 2
        arrays = problem_arrays(replace(enlarged(problem, {kind: middle}), move_s=0.0))
        if bound_of(arrays, iterations=PASSES, late_weight=0.0, miss_weight_s=1.0) > allowed:
            below = middle
        else:
            count = middle
    return count
