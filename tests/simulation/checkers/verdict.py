"""All checkers, applied to one history."""

from collections.abc import Iterator, Sequence

from simulation.checkers.answers import (
    bad_ends_have_a_reason,
    nothing_fails,
    nothing_is_answered_twice,
    nothing_is_lost,
)
from simulation.checkers.fencing import leases_are_fenced, one_leader_plans
from simulation.checkers.instances import one_session_serves
from simulation.checkers.output import clients_get_their_own, clients_see_the_log, logs_are_right
from simulation.checkers.reference import references
from simulation.checkers.service import first_in_first_out, memory_suffices
from simulation.checkers.stalls import stalls_end
from simulation.history import Event
from simulation.workload import ClientScript


def violations(events: Sequence[Event], scripts: Sequence[ClientScript]) -> Iterator[str]:
    """Yield a sentence for each violation, with the name of the broken claim."""
    answers = references(events)
    checks = (
        nothing_fails(events),
        nothing_is_lost(events, scripts),
        nothing_is_answered_twice(events),
        bad_ends_have_a_reason(events, scripts),
        logs_are_right(events, answers),
        clients_see_the_log(events, answers),
        clients_get_their_own(events, scripts),
        leases_are_fenced(events),
        one_leader_plans(events),
        one_session_serves(events),
        first_in_first_out(events),
        memory_suffices(events),
        stalls_end(events),
    )
    for check in checks:
        name = check.__name__.replace("_", " ")  # type: ignore[attr-defined]  # a generator has its function's name
        yield from (f"{name}: {wrong}" for wrong in check)
