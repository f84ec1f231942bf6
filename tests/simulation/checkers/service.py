"""Service: first in, first out within a class, one awake model per instance, and memory never exceeded."""

from collections.abc import Iterator, Sequence
from typing import Final

from qlm.domain.group import RequestClass
from qlm.domain.ids import RequestId
from qlm.domain.lease import Holder
from simulation.history import (
    Event,
    MessageDelivered,
    Published,
    Released,
    ResidencyChanged,
    Started,
)
from simulation.network import TRIP_S

TOGETHER_S: Final = 3 * TRIP_S[1]
"""Starts this close are one: lease, its answer and the call of the engine travel beside those of others."""


def first_in_first_out(events: Sequence[Event]) -> Iterator[str]:
    """Check that agents start requests of a class in order of arrival, unless redelivered or released."""
    latest: dict[tuple[Holder, RequestClass], tuple[Published, float]] = {}
    for event, came in _first_starts(events):
        before, began_s = latest.get((event.holder, came.request.cls), (None, 0.0))
        if before is not None and _overtook(before, came) and event.at_s - began_s > TOGETHER_S:
            yield (
                f"at {event.at_s:.3f} s: {before.request.id} began on {event.holder.instance} before "
                f"{event.id}, which came earlier in the same class"
            )
        if before is None or before.number < came.number:
            latest[event.holder, came.request.cls] = came, event.at_s


def _first_starts(events: Sequence[Event]) -> Iterator[tuple[Started, Published]]:
    """Yield first starts of requests whose message was stored once and, until then, delivered once."""
    published: dict[RequestId, Published] = {}
    delivered: set[RequestId] = set()
    excluded: set[RequestId] = set()
    for event in events:
        match event:
            case Published(request=request):
                if request.id in published:
                    excluded.add(request.id)
                published[request.id] = event
            case MessageDelivered(id=id, redelivered=redelivered):
                if redelivered or id in delivered:
                    excluded.add(id)
                delivered.add(id)
            case Released(id=id):
                excluded.add(id)
            case Started(id=id) if id in published and id not in excluded:
                excluded.add(id)
                yield event, published[id]


def _overtook(first: Published, second: Published) -> bool:
    """Return whether the first to start arrived later, by queue order and by the gateways' clocks."""
    return first.number > second.number and first.request.arrival_ns > second.request.arrival_ns


def memory_suffices(events: Sequence[Event]) -> Iterator[str]:
    """Check that one model is awake, the sleeping ones fit, and each start has a batch slot and KV blocks."""
    for event in events:
        match event:
            case ResidencyChanged(instance=instance, awake=awake) if len(awake) > 1:
                yield f"at {event.at_s:.3f} s: {instance} has {len(awake)} models awake: {', '.join(awake)}"
            case ResidencyChanged() if event.asleep_bytes > event.host_memory_bytes:
                yield (
                    f"at {event.at_s:.3f} s: {event.instance} keeps {event.asleep_bytes} bytes of weights; "
                    f"it has {event.host_memory_bytes}"
                )
            case Started() if event.running > event.seqs_max or event.blocks > event.blocks_max:
                yield (
                    f"at {event.at_s:.3f} s: {event.id} began on {event.holder.instance} as one of "
                    f"{event.running} with {event.blocks} KV blocks; "
                    f"there are {event.seqs_max} batch slots and {event.blocks_max} blocks"
                )
