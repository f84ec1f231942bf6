"""Operations on the outbox: ends of which other programs are to be notified."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heappop, heappush

from qlm.domain.ports.outbox import EndEvent, OutboxState
from qlm.store.core.effects import Effects
from qlm.store.core.state import State
from qlm.store.core.tables import EventRow


def add(state: State, event: EndEvent, now_ns: int, effects: Effects) -> None:
    """Add an event unless there is one of its subject, or too many wait."""
    ends = state.ends
    if event.subject in ends.events:
        return
    if len(ends.events) >= state.limits.events_waiting_max:
        ends.dropped += 1
        return
    _put(state, event, now_ns)
    effects.outbox[event.subject] = event


def claim(
    state: State, limit: int, until_ns: int, now_ns: int, is_settled: Callable[[str], bool]
) -> Sequence[EndEvent]:
    """Claim events that are due until a time; one whose end is not stored yet is left out.

    Claims are not stored: after a restart every event is due.
    """
    claimed: dict[str, EndEvent] = {}
    early: list[str] = []
    ends = state.ends
    while ends.due and ends.due[0][0] <= now_ns and len(claimed) < limit:
        due_ns, subject = heappop(ends.due)
        row = ends.events.get(subject)
        if row is None or row.due_ns != due_ns or subject in claimed:
            continue
        if is_settled(subject):
            claimed[subject] = replace(row.event, attempts=row.event.attempts + 1)
        else:
            early.append(subject)
    for event in claimed.values():
        _put(state, event, until_ns)
    for subject in early:
        heappush(ends.due, (ends.events[subject].due_ns, subject))
    return list(claimed.values())


def settle(state: State, event: EndEvent, again_ns: int | None) -> tuple[bool, Effects]:
    """Settle a claimed event, unless it was claimed again or settled since."""
    effects = Effects()
    row = state.ends.events.get(event.subject)
    if row is None or (row.event.attempts, row.event.at_ns) != (event.attempts, event.at_ns):
        return False, effects
    if again_ns is None:
        del state.ends.events[event.subject]
        effects.outbox[event.subject] = None
    else:
        if event != row.event:  # when it is due is not stored
            effects.outbox[event.subject] = event
        _put(state, event, again_ns)
    return True, effects


def waiting(state: State) -> OutboxState:
    """Return how many events there are."""
    return OutboxState(len(state.ends.events), state.ends.dropped)


def restore(state: State, event: EndEvent) -> None:
    """Restore an event, which is due at once."""
    _put(state, event, 0)


def _put(state: State, event: EndEvent, due_ns: int) -> None:
    state.ends.events[event.subject] = EventRow(event, due_ns)
    heappush(state.ends.due, (due_ns, event.subject))
