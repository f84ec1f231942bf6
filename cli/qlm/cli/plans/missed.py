"""Formats the misses of a plan, with reasons, as a table."""

from collections.abc import Iterator, Mapping
from typing import Final

from qlm.cli.inspect import render
from qlm.cli.inspect.layout import Table
from qlm.cli.plans.tables import count
from qlm.planner.policy.misses import Misses, Reason
from qlm.planner.problem import Problem

WHY: Final[Mapping[Reason, str]] = {
    Reason.LATE_ON_ARRIVAL: "its deadline had passed already",
    Reason.TOO_SLOW: "even alone on an idle instance with its model loaded it would be late",
    Reason.NO_INSTANCE_FREE: "each instance that runs its model is busy for too long with what it has",
    Reason.SWAP_NEEDED: "no instance that has its model loaded is free in time, and loading takes too long",
    Reason.HIGHER_PRIORITY_AHEAD: "work of a higher priority goes first on every instance",
    Reason.MORE_URGENT_AHEAD: "work with an earlier deadline goes first on every instance",
    Reason.SACRIFICED: "it could be in time, but the plan lets others go first",
    Reason.UNPLACEABLE: "no instance can run it",
}


def missed_lines(problem: Problem, misses: Misses) -> Iterator[Table | str]:
    """Yield the number of requests expected to be late, and a table of the groups with most of them."""
    if not misses.groups:
        yield "no group is expected to miss its deadline"
        return
    late = f"{misses.late_requests:.0f} late requests are expected in {count(misses.groups, 'group')}"
    shown = len(misses.rows)
    yield late + ("" if shown == misses.groups else f"; the {count(shown, 'group')} with most of them:")
    models = {group.id: group.model for group in problem.groups}
    yield render.table(
        "",
        ("group", "model", "on", "requests>", "late>", "why"),
        (
            (
                row.group,
                models[row.group],
                row.instance,
                row.requests,
                f"{row.late_requests:.1f}",
                WHY[row.reason],
            )
            for row in misses.rows
        ),
    )
