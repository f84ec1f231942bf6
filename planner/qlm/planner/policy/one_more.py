"""What one more instance would change for the requests that wait now: the plan of a larger fleet.

The fleet with one more instance of a kind is planned as the controller plans, from the present plan on, and
so is the present fleet: what differs is the instance alone. An added instance is as `scale_up` adds it: ready
and idle, its host memory has the models that fit. Requests that come later, and the time until a machine is
ready, are left out.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from qlm.domain.ids import GroupId
from qlm.planner.policy.scale_up import enlarged
from qlm.planner.problem import Plan, Problem
from qlm.planner.verify.problem_index import ProblemIndex
from qlm.planner.verify.referee import verify
from qlm.planner.verify.timeline import Served, serve

Method = Callable[[Problem], Plan]
"""Planning method of the larger fleets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetForecast:
    """Expected results of a fleet; times in seconds from the plan's.

    Attributes:
        kind: Kind of the added instance; None for the present fleet.
        expected_attainment: Share of the requests with a deadline that meet it; 1 if there is none.
        late_requests: Expected number of those that do not, requests that run nowhere among them.
        penalty_s: Penalty, without the price of moves.
        mean_answer_s: Mean time of the answers; None if nothing is placed.
        last_answer_s: Expected time of the last answer; None if nothing is placed.
        unplaceable_requests: Requests that no instance can run; they are in neither time.
        moved_groups: Groups on another instance than in the present plan.
        added_requests: Requests that the added instance serves.
        swaps: Model changes.
    """

    kind: str | None
    expected_attainment: float
    late_requests: float
    penalty_s: float
    mean_answer_s: float | None
    last_answer_s: float | None
    unplaceable_requests: int
    moved_groups: int
    added_requests: int
    swaps: int


def one_more(problem: Problem, plan: Plan, kinds: Iterable[str], method: Method) -> list[FleetForecast]:
    """Return what to expect of the present fleet, and of it with one more instance of each kind.

    No fleet is planned worse than by the present plan, and no larger one worse than the present fleet: these
    plans leave the added instance idle.

    Args:
        problem: The problem.
        plan: The present plan of it; it may violate constraints, and then is a start only.
        kinds: Kinds of the instances to add, keys of `problem.kinds`.
        method: Called once for each fleet.
    """
    present, again = _applied(problem, plan), replanned(problem, plan, method)
    added = len(problem.instances)
    found = [_forecast(None, present, again, added)]
    for kind in kinds:
        fleet = enlarged(present, {kind: 1})
        found.append(_forecast(kind, fleet, _best(fleet, (method(fleet), again, plan)), added))
    return found


def replanned(problem: Problem, plan: Plan, method: Method) -> Plan:
    """Return what a method makes of the present plan; that plan itself if the method makes it worse.

    Args:
        problem: The problem.
        plan: The present plan of it; it may violate constraints, and then is a start only.
        method: Called once.
    """
    present = _applied(problem, plan)
    return _best(present, (method(present), plan))


def _applied(problem: Problem, plan: Plan) -> Problem:
    """Return the problem with the plan in the instances' queues."""
    instances = tuple(replace(each, queue=tuple(plan.queues.get(each.id, ()))) for each in problem.instances)
    return replace(problem, instances=instances)


def _best(problem: Problem, plans: Iterable[Plan]) -> Plan:
    """Return the best plan, one of those that can be served if there is any."""
    bare = [Plan(queues=each.queues, unplaceable=each.unplaceable) for each in plans]
    return min(bare, key=lambda each: _cost(problem, each))


def _cost(problem: Problem, plan: Plan) -> tuple[bool, float, float]:
    """Return a sort key: can it be served, the penalty to a millisecond, the answers' times."""
    report = verify(problem, plan)
    served = serve(ProblemIndex.of(problem), plan)
    return bool(report.violations), round(report.penalty_s - report.move_s, 3), _sum_s(served)


def _forecast(kind: str | None, problem: Problem, plan: Plan, added_at: int) -> FleetForecast:
    report, served = verify(problem, plan), serve(ProblemIndex.of(problem), plan)
    placed, added = sum(each.group.requests for each in served), problem.instances[added_at:]
    wanted = sum(group.requests for group in problem.groups if group.deadline_s is not None)
    new = {each.id for each in added}
    return FleetForecast(
        kind=kind,
        expected_attainment=report.expected_attainment,
        late_requests=wanted * (1.0 - report.expected_attainment),
        penalty_s=report.penalty_s - report.move_s,
        mean_answer_s=_sum_s(served) / placed if placed else None,
        last_answer_s=max((each.completion().mean for each in served), default=None),
        unplaceable_requests=_requests(problem, {each.group.id for each in served}),
        moved_groups=len(report.moved),
        added_requests=sum(each.group.requests for each in served if each.instance.id in new),
        swaps=sum(each.swap is not None for each in served),
    )


def _requests(problem: Problem, placed: set[GroupId]) -> int:
    return sum(group.requests for group in problem.groups if group.id not in placed)


def _sum_s(served: Sequence[Served]) -> float:
    """Return the sum of the expected times of all answers: request r of n is answered at a share r/n."""
    return math.fsum(each.group.requests * each.completion(_mean_share(each)).mean for each in served)


def _mean_share(served: Served) -> float:
    """Return the mean of r/n over the requests r of a group."""
    return (served.group.requests + 1) / (2 * served.group.requests)
