"""Feasibility and penalty of a plan."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from qlm.domain.ids import GroupId, InstanceId
from qlm.domain.operations import SwapTier
from qlm.domain.values import value
from qlm.planner.problem import Objective, Plan, Problem
from qlm.planner.verify.closed_form import Lateness, group_lateness, p_on_time
from qlm.planner.verify.constraints import Violation, claim_violations, violations
from qlm.planner.verify.problem_index import ProblemIndex
from qlm.planner.verify.timeline import Served, serve
from qlm.rct_estimator.normal import Normal

LITTLE_S: Final = 1.0
"""Least reference of a gap: penalty per request with a deadline, seconds."""


SHORT_MIN: Final = 1e-6
"""Share of a group's requests up to which none counts as short of a promise: rounding breaks none."""


@value
class GroupRow:
    """Expected times and penalty of one placed group.

    Attributes:
        place: Place in the queue, from 0.
        requests: Number of requests.
        deadline_s: Deadline from now; None if it has none.
        swap: Tier of its model at the model change before it, if there is one.
        swap_s: Duration of the swap, seconds.
        moved: The present queue of another instance has it.
        start: Time when its first request leaves the queue, seconds from now.
        completion: Time when its last request is answered, seconds from now.
        class_sd_s: Standard deviation of the start by the error that its class shares, seconds.
        speed_sd_s: Standard deviation of the start by the error of the instance's speed, seconds.
        penalty_s: Part of the objective, without the price of a move.
        late_requests: Expected number of requests that miss the deadline.
        p_met: Mean over its requests of the probability to meet the deadline; 1 if it has none.
        promised: Promised share (`PlannedGroup.p_met`); None without a promise or a deadline.
        short_requests: Expected misses beyond those that its promise allows.
        p_last_late: Probability that its last request misses it: 1 less the left side of equation 12.
    """

    group: GroupId
    instance: InstanceId
    place: int
    requests: int
    deadline_s: float | None
    swap: SwapTier | None
    swap_s: float
    moved: bool
    start: Normal
    completion: Normal
    class_sd_s: float
    speed_sd_s: float
    penalty_s: float
    late_requests: float
    p_met: float
    promised: float | None
    short_requests: float
    p_last_late: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Feasibility and expected results of a plan.

    Attributes:
        objective: Objective of the penalty.
        violations: Violated constraints; empty if the plan is feasible.
        penalty_s: Penalty of the groups that can be served.
        expected_attainment: Share of the requests with a deadline that are expected to meet it; those of
            groups without a place do not. 1 if there is none.
        late_requests: Expected number of placed requests that miss their deadline.
        rows: Placed groups, by instance and place.
        swaps_warm: Model changes from host memory.
        swaps_reload: Model changes from storage into a sleeping process.
        swaps_cold: Model changes that start a process.
        swap_s: Total duration of swaps, seconds.
        moved: Groups placed on another instance than at present.
        move_s: Price of the moves, a part of `penalty_s`.
        short_requests: Expected misses beyond those that promises allow.
        promise_s: Price of these, a part of `penalty_s`.
    """

    objective: Objective
    violations: tuple[Violation, ...]
    penalty_s: float
    expected_attainment: float
    late_requests: float
    rows: tuple[GroupRow, ...]
    swaps_warm: int
    swaps_reload: int
    swaps_cold: int
    swap_s: float
    moved: tuple[GroupId, ...]
    move_s: float
    short_requests: float
    promise_s: float


def verify(problem: Problem, plan: Plan, *, objective: Objective = "requests") -> Report:
    """Check every constraint of a plan, and compute its objective in closed form under the normal model.

    The result does not depend on the order in which the problem lists groups and instances.

    Args:
        problem: The problem.
        plan: Any plan; it may violate constraints.
        objective: Penalty to compute. The price of moved groups is a part of either. If it is not that of the
            plan, the penalty and bound that the plan claims are not checked.
    """
    index = ProblemIndex.of(problem)
    rows = price(index, serve(index, plan), objective)
    moved = tuple(row.group for row in rows if row.moved)
    move_s = problem.move_s * len(moved)
    short = math.fsum(row.short_requests for row in rows)
    penalty_s = math.fsum((*(row.penalty_s for row in rows), move_s))
    attainment = _attainment(problem, rows)
    claimed_s = penalty_s if objective == plan.objective else None
    return Report(
        objective=objective,
        violations=(*violations(index, plan), *claim_violations(plan, claimed_s, attainment)),
        penalty_s=penalty_s,
        expected_attainment=attainment,
        late_requests=math.fsum(row.late_requests for row in rows),
        rows=tuple(rows),
        swaps_warm=sum(row.swap is SwapTier.WARM for row in rows),
        swaps_reload=sum(row.swap is SwapTier.RELOAD for row in rows),
        swaps_cold=sum(row.swap is SwapTier.COLD for row in rows),
        swap_s=math.fsum(row.swap_s for row in rows),
        moved=moved,
        move_s=move_s,
        short_requests=short,
        promise_s=problem.promise_s * short if objective == "requests" else 0.0,
    )


def judged(problem: Problem, plan: Plan, *, objective: Objective = "requests") -> Plan:
    """Fill in penalty and attainment; earlier claims are overwritten."""
    report = verify(problem, plan, objective=objective)
    return replace(
        plan,
        objective=objective,
        penalty_s=report.penalty_s,
        expected_attainment=report.expected_attainment,
    )


def gap(problem: Problem, plan: Plan) -> float | None:
    """Return the optimality gap: (penalty - bound) / max(bound, 1 s per request with a deadline).

    One second per request is little; relative to less, any two good plans would be far apart.

    Returns:
        None if the plan has no penalty or no bound, or if the reference is 0 and the penalty is not.
    """
    if plan.penalty_s is None or plan.lower_bound_s is None:
        return None
    requests = sum(group.requests for group in problem.groups if group.deadline_s is not None)
    more_s = max(0.0, plan.penalty_s - plan.lower_bound_s)
    scale_s = max(plan.lower_bound_s, LITTLE_S * requests)
    if scale_s > 0:
        return more_s / scale_s
    return 0.0 if more_s == 0 else None


def keeps_promise(row: GroupRow) -> bool:
    """Return True if the promise of a group holds, or there is none."""
    return row.short_requests <= SHORT_MIN * row.requests


def price(index: ProblemIndex, served: Sequence[Served], objective: Objective) -> list[GroupRow]:
    """Compute the expected times and penalty of each group at its place."""
    late = group_lateness(served, index.problem.now_s)
    return [_row(index, each, sums, objective) for each, sums in zip(served, late, strict=True)]


def _row(index: ProblemIndex, served: Served, sums: Lateness, objective: Objective) -> GroupRow:
    group, problem = served.group, index.problem
    completion = served.completion()
    deadline_s = None if group.deadline_s is None else group.deadline_s - problem.now_s
    short = max(0.0, sums.late_requests - group.misses_allowed)
    if deadline_s is None:
        penalty_s = 0.0
    elif objective == "paper":
        penalty_s = completion.mean - deadline_s
    else:
        penalty_s = sums.late_s + problem.miss_weight_s * sums.late_requests + problem.promise_s * short
    return GroupRow(
        group=group.id,
        instance=served.instance.id,
        place=served.place,
        requests=group.requests,
        deadline_s=deadline_s,
        swap=served.swap,
        swap_s=served.swap_s,
        moved=index.moved(group.id, served.instance.id),
        start=served.start,
        completion=completion,
        class_sd_s=served.class_sd_s,
        speed_sd_s=served.speed_sd_s,
        penalty_s=penalty_s,
        late_requests=sums.late_requests,
        p_met=max(0.0, 1.0 - sums.late_requests / group.requests),
        promised=None if deadline_s is None else group.p_met,
        short_requests=short,
        p_last_late=0.0 if deadline_s is None else 1.0 - p_on_time(completion, deadline_s),
    )


def _attainment(problem: Problem, rows: Sequence[GroupRow]) -> float:
    wanted = sum(group.requests for group in problem.groups if group.deadline_s is not None)
    if not wanted:
        return 1.0
    placed = [row for row in rows if row.deadline_s is not None]
    met = math.fsum((*(row.requests for row in placed), *(-row.late_requests for row in placed)))
    return min(1.0, max(0.0, met / wanted))
