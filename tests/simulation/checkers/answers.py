"""Answers: no accepted request is lost or answered twice, and each bad end has a valid cause."""

from collections import Counter
from collections.abc import Iterator, Sequence

from qlm.agents.core.lifecycle import LOSSES_MAX
from qlm.domain.ids import RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.request import Request
from qlm.domain.slo import OnMiss
from simulation.client import LEFT, REBUILDING, UNKNOWN, UNSENT
from simulation.history import (
    Answered,
    Confirmed,
    Ended,
    Event,
    Failed,
    Flushed,
    Indexed,
    KeyLost,
    Leased,
    LookedUp,
    Published,
    TextReceived,
)
from simulation.workload import ClientScript


def nothing_fails(events: Sequence[Event]) -> Iterator[str]:
    """Check that no process ends by itself, notes a defect, or is down at the end."""
    for event in events:
        if isinstance(event, Failed):
            yield f"at {event.at_s:.3f} s: {event.process} failed: {event.error}"


def nothing_is_lost(events: Sequence[Event], scripts: Sequence[ClientScript]) -> Iterator[str]:
    """Check that each confirmed request ends, and that each client receives an end or an error."""
    ended = {event.id for event in events if isinstance(event, Ended)}
    for event in events:
        if isinstance(event, Confirmed) and event.id not in ended:
            yield f"{event.id}, confirmed at {event.at_s:.3f} s, never ended"
    answered = {event.client for event in events if isinstance(event, Answered)}
    for script in scripts:
        if script.number not in answered:
            yield f"client {script.number}, which began at {script.at_s:.3f} s, never received an end"


def nothing_is_answered_twice(events: Sequence[Event]) -> Iterator[str]:
    """Check that the store ends a request once, unless it was flushed, and that a client receives one end."""
    ended: set[RequestId] = set()
    answered: set[int] = set()
    for event in events:
        match event:
            case Flushed():
                ended.clear()
            case KeyLost(kind="request", of=of):
                ended.discard(RequestId(of))
            case Ended(id=id):
                if id in ended:
                    yield f"at {event.at_s:.3f} s: {id} ended again"
                ended.add(id)
            case Answered(client=client) | TextReceived(client=client):
                if client in answered:
                    yield f"at {event.at_s:.3f} s: client {client} received more after the end"
                if isinstance(event, Answered):
                    answered.add(client)


def bad_ends_have_a_reason(events: Sequence[Event], scripts: Sequence[ClientScript]) -> Iterator[str]:
    """Check that an answer is missing only because of the client, its request, or a loss of the store."""
    requests = {event.request.id: event.request for event in events if isinstance(event, Published)}
    seen = _Seen()
    for event in events:
        if isinstance(event, Answered):
            id, end = event.id, event.end
            if not (seen.explains(id, end) or _has_a_reason(end, scripts[event.client], requests.get(id))):
                yield f"at {event.at_s:.3f} s: client {event.client} ({id}) ended: {end}"
        else:
            seen.note(event)


class _Seen:
    """What happened to requests in the store; `_missed`: those that the latest look did not find."""

    def __init__(self) -> None:
        self._known: set[RequestId] = set()
        self._missed: set[RequestId] = set()
        self._lost: set[RequestId] = set()
        self._leases: Counter[RequestId] = Counter()
        self._flushed = False

    def note(self, event: Event) -> None:
        """Note an event."""
        match event:
            case Flushed():
                self._known.clear()
                self._flushed = True
            case KeyLost(kind="request" | "log" as kind, of=of):
                self._lost.add(RequestId(of))
                if kind == "request":
                    self._known.discard(RequestId(of))
            case LookedUp(id=id, known=known):
                (self._missed.discard if known else self._missed.add)(id)
            case Indexed(id=id) | Leased(id=id):
                self._known.add(id)
                self._leases[id] += isinstance(event, Leased)

    def explains(self, id: RequestId, end: str) -> bool:
        """Return whether an end follows from what was lost, or from engines that failed too often."""
        match end:
            case str() if end in (REBUILDING, UNKNOWN):
                # The answer of the latest look may be on its way while another process indexes the request.
                return id not in self._known or id in self._missed
            case Outcome.OUTPUT_LOST:
                return self._flushed or id in self._lost
            case Outcome.FAILED:
                return self._leases[id] >= LOSSES_MAX  # each ends a lease
        return False


def _has_a_reason(end: str, script: ClientScript, request: Request | None) -> bool:
    match end:
        case Outcome.STOP | Outcome.LENGTH:
            return True
        case Outcome.CANCELLED:
            # A client that breaks its stream may, because of other faults, resume after the grace period.
            return script.cancels_after_s is not None or script.breaks_after is not None
        case Outcome.EXPIRED:
            return request is not None and request.on_miss is OnMiss.DROP
    return (end == UNSENT and script.key is None) or (end == LEFT and script.leaves)
