"""Stalls: what stands still on a hung engine goes on soon."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from simulation.faults.engines import HANGS
from simulation.history import Event, Fault, FaultOver, Stalled, StallOver

STALL_MAX_S: Final = 15.0
"""Longest time for which a generation may stand still, if no other fault disturbs its agent."""

_SETTLED_S: Final = 10.0
"""Time after a fault in which its agent may still be disturbed."""


def stalls_end(events: Sequence[Event]) -> Iterator[str]:
    """Check that a generation on a hung engine goes on, or is taken off it, within `STALL_MAX_S`."""
    open_stalls: dict[str, Stalled] = {}
    faults: list[Fault] = []
    over: list[tuple[Fault, float]] = []
    for event in events:
        match event:
            case Stalled(call_id=call_id):
                open_stalls[call_id] = event
            case StallOver(call_id=call_id) if call_id in open_stalls:
                yield from _too_long(open_stalls.pop(call_id), event.at_s, faults, over)
            case Fault():
                faults.append(event)
            case FaultOver(kind=kind, target=target):
                began = next(each for each in faults if (each.kind, each.target) == (kind, target))
                faults.remove(began)
                over.append((began, event.at_s))
    for stalled in open_stalls.values():
        yield from _too_long(stalled, events[-1].at_s, faults, over)


def _too_long(
    stalled: Stalled, until_s: float, faults: Sequence[Fault], over: Sequence[tuple[Fault, float]]
) -> Iterator[str]:
    spans = [(each.at_s, end_s + _SETTLED_S) for each, end_s in over if _disturbs(each, stalled)]
    spans += [(each.at_s, until_s) for each in faults if _disturbs(each, stalled)]
    calm_s = _outside(stalled.at_s, until_s, spans)
    if calm_s > STALL_MAX_S:
        yield (
            f"at {stalled.at_s:.3f} s: {stalled.call_id} stood still on {stalled.instance} "
            f"until {until_s:.3f} s, {calm_s:.1f} s of that without another fault"
        )


def _disturbs(fault: Fault, stalled: Stalled) -> bool:
    servers = ("store", "broker", "all")
    return fault.target in servers or (fault.target == stalled.instance and fault.kind not in HANGS)


def _outside(from_s: float, until_s: float, spans: Iterable[tuple[float, float]]) -> float:
    """Return the part of a time that no span covers, seconds."""
    left_s, at_s = 0.0, from_s
    for begin_s, end_s in sorted(spans):
        left_s += max(0.0, min(begin_s, until_s) - at_s)
        at_s = max(at_s, min(end_s, until_s))
    return left_s + max(0.0, until_s - at_s)
