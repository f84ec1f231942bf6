"""Checks of the constraints of a plan, by name."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Final

from qlm.planner.problem import Plan
from qlm.planner.verify.problem_index import ProblemIndex

CLAIM_TOLERANCE: Final = 1e-6
"""Largest error of a claimed value, as a share of the true value or of 1."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A violated constraint.

    Attributes:
        constraint: Name of the constraint.
        detail: Place of the violation, and the expected value.
    """

    constraint: str
    detail: str


def violations(index: ProblemIndex, plan: Plan) -> list[Violation]:
    """Check the queues and the list of unplaceable groups; docs/planner-problem.md lists the constraints."""
    return [*placement_violations(index, plan), *_priority_order(index, plan)]


def placement_violations(index: ProblemIndex, plan: Plan) -> Iterator[Violation]:
    """Check that each group that can run has one place, where it runs."""
    checks: tuple[Callable[[ProblemIndex, Plan], Iterator[Violation]], ...] = (
        _known_instances,
        _known_groups,
        _each_group_once,
        _runs_there,
        _unplaceable,
    )
    for check in checks:
        yield from check(index, plan)


def claim_violations(plan: Plan, penalty_s: float | None, attainment: float) -> list[Violation]:
    """Check the values that the plan claims against the computed ones.

    Args:
        plan: The plan.
        penalty_s: Its penalty by its own objective; None if another one was computed.
        attainment: Its expected attainment.
    """
    found = [] if penalty_s is None else _penalty_violations(plan, penalty_s)
    if plan.expected_attainment is not None and not _close(plan.expected_attainment, attainment):
        detail = f"{plan.expected_attainment!r} claimed; expected {attainment!r}"
        found.append(Violation("claimed_attainment", detail))
    return found


def _penalty_violations(plan: Plan, penalty_s: float) -> list[Violation]:
    found = []
    if plan.penalty_s is not None and not _close(plan.penalty_s, penalty_s):
        found.append(Violation("claimed_penalty", f"{plan.penalty_s!r} s claimed; expected {penalty_s!r} s"))
    bound_s = plan.lower_bound_s
    if bound_s is not None and bound_s > penalty_s and not _close(bound_s, penalty_s):
        detail = f"{bound_s!r} s claimed; expected at most the penalty, {penalty_s!r} s"
        found.append(Violation("lower_bound", detail))
    return found


def _close(claimed: float, true: float) -> bool:
    return abs(claimed - true) <= CLAIM_TOLERANCE * max(1.0, abs(true))


def _known_instances(index: ProblemIndex, plan: Plan) -> Iterator[Violation]:
    for instance in plan.queues:
        if instance not in index.instances:
            yield Violation("known_instances", f"there is no instance {instance}")


def _known_groups(index: ProblemIndex, plan: Plan) -> Iterator[Violation]:
    places = {f"the queue of {instance}": queue for instance, queue in plan.queues.items()}
    for where, queue in (*places.items(), ("the list of unplaceable groups", plan.unplaceable)):
        for group in queue:
            if group not in index.groups:
                yield Violation("known_groups", f"{where} has {group}; there is no such group")


def _each_group_once(index: ProblemIndex, plan: Plan) -> Iterator[Violation]:
    """Check equation 6: each group that can run has one place."""
    times = Counter(chain.from_iterable(plan.queues.values()))
    for name, group in index.groups.items():
        placed = times.get(name, 0)
        if placed > 1:
            spots = [each for each, queue in plan.queues.items() for at in queue if at == name]
            yield Violation("each_group_once", f"{name} is placed {placed} times: {', '.join(spots)}")
        elif not placed and index.placeable(group):
            yield Violation("each_group_once", f"{name} is placed nowhere")


def _runs_there(index: ProblemIndex, plan: Plan) -> Iterator[Violation]:
    for instance, queue in plan.queues.items():
        if instance not in index.instances:
            continue
        kind = index.instances[instance].kind
        for name in queue:
            group = index.groups.get(name)
            if group is not None and not index.kind_runs(kind, group):
                detail = f"{group.id} of {group.model} does not run on {instance} ({kind})"
                yield Violation("runs_there", detail)


def _unplaceable(index: ProblemIndex, plan: Plan) -> Iterator[Violation]:
    listed = set(plan.unplaceable)
    if len(listed) < len(plan.unplaceable):
        yield Violation("unplaceable", "a group is listed twice")
    for name, group in index.groups.items():
        runs = index.placeable(group)
        if runs and name in listed:
            yield Violation("unplaceable", f"{name} is listed, but could be placed")
        elif not runs and name not in listed:
            why = index.why_unplaceable(group)
            yield Violation("unplaceable", f"{name} is not listed, but cannot be placed: {why}")


def _priority_order(index: ProblemIndex, plan: Plan) -> Iterator[Violation]:
    """Check strict priorities (QLM, A.3): no group follows one of a higher priority number."""
    for instance, queue in plan.queues.items():
        groups = [index.groups[name] for name in queue if name in index.groups]
        for before, after in pairwise(groups):
            if before.priority > after.priority:
                detail = (
                    f"on {instance}, {after.id} (priority {after.priority}) stands behind "
                    f"{before.id} (priority {before.priority})"
                )
                yield Violation("priority_order", detail)
