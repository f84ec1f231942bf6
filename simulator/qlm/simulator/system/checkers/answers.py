"""Answers: nothing accepted is lost, nothing is answered twice, and each bad end has its reason."""

from collections.abc import Iterator, Sequence

from qlm.domain.ids import RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.request import Request
from qlm.domain.sampling import Evictability
from qlm.domain.slo import OnMiss
from qlm.simulator.system.client import LEFT, REBUILDING, UNKNOWN, UNSENT
from qlm.simulator.system.history import (
    Answered,
    Confirmed,
    Ended,
    Event,
    Failed,
    Flushed,
    Indexed,
    Leased,
    Published,
    Shown,
)
from qlm.simulator.system.workload import Errand


def nothing_fails(events: Sequence[Event]) -> Iterator[str]:
    """No part ends by itself."""
    for event in events:
        if isinstance(event, Failed):
            yield f"at {event.at_s:.3f} s: {event.process} failed: {event.error}"


def nothing_is_lost(events: Sequence[Event], errands: Sequence[Errand]) -> Iterator[str]:
    """Each confirmed request ends, and each client hears of an end, its own or that its answer was lost."""
    ended = {event.id for event in events if isinstance(event, Ended)}
    for event in events:
        if isinstance(event, Confirmed) and event.id not in ended:
            yield f"{event.id}, confirmed at {event.at_s:.3f} s, never ended"
    answered = {event.client for event in events if isinstance(event, Answered)}
    for errand in errands:
        if errand.number not in answered:
            yield f"client {errand.number}, which began at {errand.at_s:.3f} s, waits for ever"


def nothing_is_answered_twice(events: Sequence[Event]) -> Iterator[str]:
    """The store ends a request once, unless it was emptied after that; a client is told one end."""
    ended: set[RequestId] = set()
    answered: set[int] = set()
    for event in events:
        match event:
            case Flushed():
                ended.clear()
            case Ended(id=id):
                if id in ended:
                    yield f"at {event.at_s:.3f} s: {id} ended again"
                ended.add(id)
            case Answered(client=client) | Shown(client=client):
                if client in answered:
                    yield f"at {event.at_s:.3f} s: client {client} was told more after the end"
                if isinstance(event, Answered):
                    answered.add(client)


def bad_ends_have_a_reason(events: Sequence[Event], errands: Sequence[Errand]) -> Iterator[str]:
    """An answer is missing only where the client, its request, or what the store has lost is the cause."""
    requests = {event.request.id: event.request for event in events if isinstance(event, Published)}
    known: set[RequestId] = set()
    flushed = False
    for event in events:
        match event:
            case Flushed():
                known.clear()
                flushed = True
            case Indexed(id=id) | Leased(id=id):
                known.add(id)
            case Answered(id=id, end=end):
                errand, request = errands[event.client], requests.get(id)
                if end in (REBUILDING, UNKNOWN):
                    fine = id not in known
                else:
                    fine = _has_a_reason(end, errand, request) or (flushed and end == Outcome.OUTPUT_LOST)
                if not fine:
                    yield f"at {event.at_s:.3f} s: client {event.client} ({id}) ended: {end}"


def _has_a_reason(end: str, errand: Errand, request: Request | None) -> bool:
    match end:
        case Outcome.STOP | Outcome.LENGTH:
            return True
        case Outcome.CANCELLED:
            # Who breaks its stream may, among other faults, come back after the grace.
            return errand.cancels_after_s is not None or errand.breaks_after is not None
        case Outcome.EXPIRED:
            return request is not None and request.on_miss is OnMiss.DROP
        case Outcome.ENGINE_LOST:
            return request is not None and request.evictability is Evictability.PINNED
    return (end == UNSENT and errand.key is None) or (end == LEFT and errand.leaves)
