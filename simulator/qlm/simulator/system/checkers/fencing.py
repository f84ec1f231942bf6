"""Fences: one holder per request, one leader per term, and nothing from whoever came before."""

from collections.abc import Iterator, Sequence

from qlm.domain.ids import InstanceId, RequestId
from qlm.domain.leadership import Term
from qlm.domain.lease import Epoch, Holder
from qlm.domain.output import AppendResult
from qlm.simulator.system.history import (
    Appended,
    Beat,
    Ended,
    Event,
    Flushed,
    Leased,
    Led,
    Planned,
    Released,
)


def leases_are_fenced(events: Sequence[Event]) -> Iterator[str]:
    """Epochs of a request only grow, one live holder has it at a time, and only its epoch writes."""
    last: dict[RequestId, Epoch] = {}
    held: dict[RequestId, tuple[Holder, Epoch]] = {}
    alive: dict[InstanceId, tuple[Holder, float]] = {}
    for event in events:
        match event:
            case Flushed():
                held.clear()
                alive.clear()
            case Beat(holder=holder, ttl_s=ttl_s):
                alive[holder.instance] = (holder, event.at_s + ttl_s)
            case Leased(id=id, holder=holder, epoch=epoch):
                if id in last and not last[id] < epoch:
                    yield f"{_at(event)}{id} was leased under {epoch} after {last[id]}"
                former = held.get(id)
                if former is not None and former[0] != holder and _lives(former[0], alive, event.at_s):
                    yield f"{_at(event)}{id} was leased to {holder} though {former[0]} has it"
                last[id], held[id] = epoch, (holder, epoch)
            case Released(id=id) | Ended(id=id):
                held.pop(id, None)
            case Appended(id=id, result=AppendResult.TAKEN, epoch=epoch, outcome=outcome):
                # The end was noted just before the entry that brought it.
                if last.get(id) != epoch or (outcome is None and id not in held):
                    yield f"{_at(event)}{id} took tokens under {epoch}; its lease is {held.get(id)}"


def _lives(holder: Holder, alive: dict[InstanceId, tuple[Holder, float]], at_s: float) -> bool:
    known = alive.get(holder.instance)
    return known is not None and known[0] == holder and at_s < known[1]


def one_leader_plans(events: Sequence[Event]) -> Iterator[str]:
    """Terms only grow, each has one leader, and what is planned is planned under the latest by its leader."""
    leaders: dict[Term, str] = {}
    latest: Term | None = None
    for event in events:
        match event:
            case Led(leader=leader, term=term):
                if latest is not None and term < latest:
                    yield f"{_at(event)}{term} was given after {latest}"
                if leaders.setdefault(term, leader) != leader:
                    yield f"{_at(event)}{term} was given to {leader} and {leaders[term]}"
                latest = term
            case Planned(process=process, what=what, term=term, done=True):
                leader = leaders.get(term, "nobody")
                if term != latest or not leader.startswith(f"{process}-"):
                    yield f"{_at(event)}{process} did {what} under {term}; {leader} leads under {latest}"


def _at(event: Event) -> str:
    return f"at {event.at_s:.3f} s: "
