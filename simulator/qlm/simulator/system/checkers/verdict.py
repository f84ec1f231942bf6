"""All checks on one history."""

from collections.abc import Iterator, Sequence

from qlm.simulator.system.checkers.answers import (
    bad_ends_have_a_reason,
    nothing_fails,
    nothing_is_answered_twice,
    nothing_is_lost,
)
from qlm.simulator.system.checkers.fencing import leases_are_fenced, one_leader_plans
from qlm.simulator.system.checkers.output import clients_see_the_log, logs_are_right
from qlm.simulator.system.checkers.reference import references
from qlm.simulator.system.checkers.service import first_in_first_out, memory_suffices
from qlm.simulator.system.history import Event
from qlm.simulator.system.workload import Errand


def violations(events: Sequence[Event], errands: Sequence[Errand]) -> Iterator[str]:
    """Say what should not have happened, each with the name of the claim that it breaks.

    Args:
        events: The history.
        errands: What clients set out to do.
    """
    answers = references(events)
    checks = (
        nothing_fails(events),
        nothing_is_lost(events, errands),
        nothing_is_answered_twice(events),
        bad_ends_have_a_reason(events, errands),
        logs_are_right(events, answers),
        clients_see_the_log(events, answers),
        leases_are_fenced(events),
        one_leader_plans(events),
        first_in_first_out(events),
        memory_suffices(events),
    )
    for check in checks:
        name = check.__name__.replace("_", " ")  # type: ignore[attr-defined]  # a generator has its function's name
        yield from (f"{name}: {wrong}" for wrong in check)
