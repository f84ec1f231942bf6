"""Checks a plan and computes what it costs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from qlm.domain.ids import GroupId, InstanceId
from qlm.planner.problem import Objective, Plan, Problem
from qlm.planner.verify.closed_form import Lateness, group_lateness, p_on_time
from qlm.planner.verify.constraints import Violation, claim_violations, violations
from qlm.planner.verify.placing import Places
from qlm.planner.verify.timeline import Served, Swap, serve
from qlm.rct_estimator.normal import Normal

LITTLE_S: Final = 1.0
"""Penalty per request with a deadline that gaps are measured against at least, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """What is expected of one placed group.

    Attributes:
        group: Its id.
        instance: Where it is placed.
        place: From 0.
        requests: In it.
        deadline_s: From now; None if it has none.
        swap: The model change before it, if there is one.
        swap_s: How long that takes, seconds.
        moved: It stands in the present queue of another instance.
        start: When its first request leaves the queue, seconds from now.
        completion: When its last request is answered, seconds from now.
        penalty_s: Its part of the objective, without the price of a move.
        late_requests: Expected number of requests that miss the deadline.
        p_met: Mean over its requests of the probability to meet the deadline; 1 if it has none.
        p_last_late: Probability that its last request misses it: 1 less the left side of equation 12.
    """

    group: GroupId
    instance: InstanceId
    place: int
    requests: int
    deadline_s: float | None
    swap: Swap | None
    swap_s: float
    moved: bool
    start: Normal
    completion: Normal
    penalty_s: float
    late_requests: float
    p_met: float
    p_last_late: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a plan does.

    Attributes:
        objective: By which it was priced.
        violations: Constraints that it does not keep; it is feasible if there are none.
        penalty_s: The objective, of what can be served.
        expected_attainment: Share of the requests with a deadline that are expected to meet it; those of
            groups without a place do not. 1 if there is none.
        late_requests: Expected number of placed requests that miss their deadline.
        rows: Placed groups, by instance and place.
        swaps_warm: Model changes from host memory.
        swaps_cold: Model changes from storage.
        swap_s: What all of them take, seconds.
        moved: Groups placed on another instance than at present.
        move_s: What that costs, a part of `penalty_s`.
    """

    objective: Objective
    violations: tuple[Violation, ...]
    penalty_s: float
    expected_attainment: float
    late_requests: float
    rows: tuple[GroupRow, ...]
    swaps_warm: int
    swaps_cold: int
    swap_s: float
    moved: tuple[GroupId, ...]
    move_s: float


def verify(problem: Problem, plan: Plan, *, objective: Objective = "requests") -> Report:
    """Check every constraint of a plan, and compute its objective in closed form under the normal model.

    Equal results for equal contents, in whatever order the problem lists its groups and instances.

    Args:
        problem: What waits, and the fleet.
        plan: An answer to it; may be wrong in any way.
        objective: How to price it. The price of moved groups is a part of either.
    """
    places = Places.of(problem)
    rows = price(places, serve(places, plan), objective)
    moved = tuple(row.group for row in rows if row.moved)
    move_s = problem.move_s * len(moved)
    penalty_s = math.fsum((*(row.penalty_s for row in rows), move_s))
    attainment = _attainment(problem, rows)
    return Report(
        objective=objective,
        violations=(*violations(places, plan), *claim_violations(plan, penalty_s, attainment)),
        penalty_s=penalty_s,
        expected_attainment=attainment,
        late_requests=math.fsum(row.late_requests for row in rows),
        rows=tuple(rows),
        swaps_warm=sum(row.swap == "warm" for row in rows),
        swaps_cold=sum(row.swap == "cold" for row in rows),
        swap_s=math.fsum(row.swap_s for row in rows),
        moved=moved,
        move_s=move_s,
    )


def judged(problem: Problem, plan: Plan, *, objective: Objective = "requests") -> Plan:
    """Fill in what the plan costs and attains; what it claimed of that before is not looked at."""
    report = verify(problem, plan, objective=objective)
    return replace(plan, penalty_s=report.penalty_s, expected_attainment=report.expected_attainment)


def gap(problem: Problem, plan: Plan) -> float | None:
    """Give the share that a better plan could save at most: (penalty - bound) / max(bound, 1 s per request).

    A second per request with a deadline is little; measured against less, any two good plans are far apart.

    Returns:
        None if the plan has no penalty or no bound, or if there is nothing to measure against.
    """
    if plan.penalty_s is None or plan.lower_bound_s is None:
        return None
    requests = sum(group.requests for group in problem.groups if group.deadline_s is not None)
    more_s = max(0.0, plan.penalty_s - plan.lower_bound_s)
    scale_s = max(plan.lower_bound_s, LITTLE_S * requests)
    if scale_s > 0:
        return more_s / scale_s
    return 0.0 if more_s == 0 else None


def price(places: Places, served: Sequence[Served], objective: Objective) -> list[GroupRow]:
    """Compute what is expected of each group at its place."""
    late = group_lateness(served, places.problem.now_s)
    return [_row(places, each, sums, objective) for each, sums in zip(served, late, strict=True)]


def _row(places: Places, served: Served, sums: Lateness, objective: Objective) -> GroupRow:
    group, problem = served.group, places.problem
    completion = served.completion()
    deadline_s = None if group.deadline_s is None else group.deadline_s - problem.now_s
    if deadline_s is None:
        penalty_s = 0.0
    elif objective == "paper":
        penalty_s = completion.mean - deadline_s
    else:
        penalty_s = sums.late_s + problem.miss_weight_s * sums.late_requests
    return GroupRow(
        group=group.id,
        instance=served.instance.id,
        place=served.place,
        requests=group.requests,
        deadline_s=deadline_s,
        swap=served.swap,
        swap_s=served.swap_s,
        moved=places.moved(group.id, served.instance.id),
        start=served.start,
        completion=completion,
        penalty_s=penalty_s,
        late_requests=sums.late_requests,
        p_met=max(0.0, 1.0 - sums.late_requests / group.requests),
        p_last_late=0.0 if deadline_s is None else 1.0 - p_on_time(completion, deadline_s),
    )


def _attainment(problem: Problem, rows: Sequence[GroupRow]) -> float:
    wanted = sum(group.requests for group in problem.groups if group.deadline_s is not None)
    if not wanted:
        return 1.0
    placed = [row for row in rows if row.deadline_s is not None]
    met = math.fsum((*(row.requests for row in placed), *(-row.late_requests for row in placed)))
    return min(1.0, max(0.0, met / wanted))
