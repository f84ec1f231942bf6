"""The constraints of a plan, each by its name."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from qlm.domain.ids import GroupId, InstanceId
from qlm.planner.problem import Plan, PlannedGroup
from qlm.planner.verify.placing import Places

CLAIM_TOLERANCE: Final = 1e-6
"""Largest error of what a plan claims, as a share of the true value or of 1."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A constraint that a plan does not keep.

    Attributes:
        constraint: Its name.
        detail: Where, and what was expected.
    """

    constraint: str
    detail: str


def violations(places: Places, plan: Plan) -> list[Violation]:
    """Check the queues and the list of unplaceable groups; docs/planner-problem.md lists the constraints."""
    checks: tuple[Callable[[Places, Plan], Iterator[Violation]], ...] = (
        _known_instances,
        _known_groups,
        _each_group_once,
        _runs_there,
        _unplaceable,
        _priority_order,
    )
    return [each for check in checks for each in check(places, plan)]


def claim_violations(plan: Plan, penalty_s: float, attainment: float) -> list[Violation]:
    """Check what the plan claims of itself against what was computed."""
    found = []
    if plan.penalty_s is not None and not _close(plan.penalty_s, penalty_s):
        found.append(Violation("claimed_penalty", f"{plan.penalty_s!r} s claimed; expected {penalty_s!r} s"))
    if plan.expected_attainment is not None and not _close(plan.expected_attainment, attainment):
        detail = f"{plan.expected_attainment!r} claimed; expected {attainment!r}"
        found.append(Violation("claimed_attainment", detail))
    bound_s = plan.lower_bound_s
    if bound_s is not None and bound_s > penalty_s and not _close(bound_s, penalty_s):
        detail = f"{bound_s!r} s claimed; expected at most the penalty, {penalty_s!r} s"
        found.append(Violation("lower_bound", detail))
    return found


def _close(claimed: float, true: float) -> bool:
    return abs(claimed - true) <= CLAIM_TOLERANCE * max(1.0, abs(true))


def _known_instances(places: Places, plan: Plan) -> Iterator[Violation]:
    for instance in plan.queues:
        if instance not in places.instances:
            yield Violation("known_instances", f"there is no instance {instance}")


def _known_groups(places: Places, plan: Plan) -> Iterator[Violation]:
    for where, group in _named(plan):
        if group not in places.groups:
            yield Violation("known_groups", f"{where} has {group}; there is no such group")


def _named(plan: Plan) -> Iterator[tuple[str, GroupId]]:
    for instance, queue in plan.queues.items():
        for group in queue:
            yield f"the queue of {instance}", group
    for group in plan.unplaceable:
        yield "the list of unplaceable groups", group


def _each_group_once(places: Places, plan: Plan) -> Iterator[Violation]:
    """Equation 6: each group that can run somewhere has one place."""
    at: dict[GroupId, list[InstanceId]] = {}
    for instance, queue in plan.queues.items():
        for placed in queue:
            at.setdefault(placed, []).append(instance)
    for name, group in places.groups.items():
        spots = at.get(name, [])
        if len(spots) > 1:
            yield Violation("each_group_once", f"{name} is placed {len(spots)} times: {', '.join(spots)}")
        elif not spots and places.placeable(group):
            yield Violation("each_group_once", f"{name} is placed nowhere")


def _runs_there(places: Places, plan: Plan) -> Iterator[Violation]:
    for instance, group in _placed(places, plan):
        if not places.runs(places.instances[instance], group):
            kind = places.instances[instance].kind
            yield Violation("runs_there", f"{group.id} of {group.model} does not run on {instance} ({kind})")


def _placed(places: Places, plan: Plan) -> Iterator[tuple[InstanceId, PlannedGroup]]:
    for instance, queue in plan.queues.items():
        for name in queue:
            if instance in places.instances and name in places.groups:
                yield instance, places.groups[name]


def _unplaceable(places: Places, plan: Plan) -> Iterator[Violation]:
    listed = set(plan.unplaceable)
    if len(listed) < len(plan.unplaceable):
        yield Violation("unplaceable", "a group is listed twice")
    for name, group in places.groups.items():
        runs = places.placeable(group)
        if runs and name in listed:
            yield Violation("unplaceable", f"{name} is listed, but could be placed")
        elif not runs and name not in listed:
            why = places.why_unplaceable(group)
            yield Violation("unplaceable", f"{name} is not listed, but cannot be placed: {why}")


def _priority_order(places: Places, plan: Plan) -> Iterator[Violation]:
    """Strict priorities (QLM, A.3): nothing stands behind a group of a higher priority number."""
    for instance, queue in plan.queues.items():
        groups = [places.groups[name] for name in queue if name in places.groups]
        for before, after in pairwise(groups):
            if before.priority > after.priority:
                detail = (
                    f"on {instance}, {after.id} (priority {after.priority}) stands behind "
                    f"{before.id} (priority {before.priority})"
                )
                yield Violation("priority_order", detail)
