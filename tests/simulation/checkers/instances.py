"""Instances: each is served by one session of its agent at a time."""

from collections.abc import Iterator, Sequence

from qlm.domain.ids import InstanceId
from qlm.domain.lease import Holder
from simulation.history import Died, Event, Flushed, Heartbeat, KeyLost


def one_session_serves(events: Sequence[Event]) -> Iterator[str]:
    """Check that a session gets an instance only when the one that had it has lapsed, left or died."""
    leases: dict[InstanceId, tuple[Holder, float]] = {}
    died: set[str] = set()
    for event in events:
        match event:
            case Flushed():
                leases.clear()
            case KeyLost(kind="instance", of=of):
                leases.pop(InstanceId(of), None)
            case Died(life=life):
                died.add(life)
            case Heartbeat(holder=holder, ttl_s=ttl_s):
                former, until_s = leases.get(holder.instance, (holder, 0.0))
                if former != holder and event.at_s < until_s and former.session not in died:
                    yield f"at {event.at_s:.3f} s: {holder} got its instance though {former} has it"
                leases[holder.instance] = (holder, event.at_s + ttl_s)
