"""Fencing: one holder per request, one leader per term, and no effect of former ones."""

from collections.abc import Iterator, Sequence

from qlm.domain.ids import InstanceId, RequestId
from qlm.domain.leadership import Term
from qlm.domain.lease import Epoch, Holder
from qlm.domain.output import AppendResult
from simulation.history import (
    Appended,
    Ended,
    Event,
    FencedWrite,
    Flushed,
    Heartbeat,
    KeyLost,
    LeaderNamed,
    Leased,
    Released,
)


def leases_are_fenced(events: Sequence[Event]) -> Iterator[str]:
    """Check that a request's epochs grow, that it has one live holder, and that only its epoch writes."""
    last: dict[RequestId, Epoch] = {}
    leases: dict[RequestId, tuple[Holder, Epoch]] = {}
    alive: dict[InstanceId, tuple[Holder, float]] = {}
    for event in events:
        _forget(event, leases, alive)
        match event:
            case Heartbeat(holder=holder, ttl_s=ttl_s):
                alive[holder.instance] = (holder, event.at_s + ttl_s)
            case Leased(id=id, holder=holder, epoch=epoch):
                if id in last and not last[id] < epoch:
                    yield f"{_at(event)}{id} was leased under {epoch} after {last[id]}"
                former = leases.get(id)
                if former is not None and former[0] != holder and _lives(former[0], alive, event.at_s):
                    yield f"{_at(event)}{id} was leased to {holder} though {former[0]} has it"
                last[id], leases[id] = epoch, (holder, epoch)
            case Released(id=id) | Ended(id=id):
                leases.pop(id, None)
            case Appended(id=id, result=AppendResult.TAKEN, epoch=epoch, outcome=outcome):
                # The history has the end just before the entry that caused it.
                if last.get(id) != epoch or (outcome is None and id not in leases):
                    yield f"{_at(event)}{id} took tokens under {epoch}; its lease is {leases.get(id)}"


def _forget(
    event: Event,
    leases: dict[RequestId, tuple[Holder, Epoch]],
    alive: dict[InstanceId, tuple[Holder, float]],
) -> None:
    """Forget what the store has lost. Epochs grow beyond a loss."""
    match event:
        case Flushed():
            leases.clear()
            alive.clear()
        case KeyLost(kind="request", of=of):
            leases.pop(RequestId(of), None)
        case KeyLost(kind="instance", of=of):
            alive.pop(InstanceId(of), None)


def _lives(holder: Holder, alive: dict[InstanceId, tuple[Holder, float]], at_s: float) -> bool:
    known = alive.get(holder.instance)
    return known is not None and known[0] == holder and at_s < known[1]


def one_leader_plans(events: Sequence[Event]) -> Iterator[str]:
    """Check that terms grow and have one leader, and that only the latest term's leader writes plans."""
    leaders: dict[Term, str] = {}
    latest: Term | None = None
    for event in events:
        match event:
            case LeaderNamed(leader=leader, term=term):
                if latest is not None and term < latest:
                    yield f"{_at(event)}{term} was given after {latest}"
                if leaders.setdefault(term, leader) != leader:
                    yield f"{_at(event)}{term} was given to {leader} and {leaders[term]}"
                latest = term
            case FencedWrite(process=process, what=what, term=term, done=True):
                leader = leaders.get(term, "no one")
                if term != latest or not leader.startswith(f"{process}-"):
                    yield f"{_at(event)}{process} did {what} under {term}; {leader} leads under {latest}"


def _at(event: Event) -> str:
    return f"at {event.at_s:.3f} s: "
