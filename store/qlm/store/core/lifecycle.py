"""Transitions of a request that several operations share: index, wait, extend, end."""

from array import array
from heapq import heappush

from qlm.domain.formats.extensions import NO_LOG_EXTENSIONS, LogExtensions
from qlm.domain.ids import GatewayId, InstanceId, TokenIds
from qlm.domain.lease import Epoch, Holder
from qlm.domain.outcome import Outcome
from qlm.domain.output import OutputSlice
from qlm.domain.ports.outbox import EndEvent
from qlm.domain.request import ENDED, Event, Request, RequestMetadata, RequestState
from qlm.store.core import outbox
from qlm.store.core.effects import WAKE_REMOVED, Effects, Logged
from qlm.store.core.state import State
from qlm.store.core.tables import RequestRow


def add_request(state: State, metadata: RequestMetadata, now_ns: int) -> RequestRow:
    """Index a new request, which does not wait yet."""
    if isinstance(metadata, Request):
        metadata = metadata.metadata()
    row = RequestRow(metadata, state.class_row(metadata.cls))
    row.epoch = Epoch(max(state.incarnation, now_ns), 0)
    state.requests[metadata.id] = row
    state.arrivals.add(row.key)
    row.cls.accept(metadata)
    restored = state.restored.pop(metadata.id, None)
    if restored is not None:
        row.log.extend(restored.token_ids)
        row.extensions = restored.extensions
        # The journal has no other times; a reader who waited for the first token has waited since.
        row.times.take(len(restored.token_ids), restored.first_token_ns)
    add_event(state, row, now_ns, "accepted")
    return row


def add_event(
    state: State, row: RequestRow, now_ns: int, what: str, why: str = "", instance: InstanceId | None = None
) -> None:
    """Append to the event history of a request."""
    row.events.append(Event(now_ns, what, why, instance))
    if len(row.events) > state.limits.events_max:
        del row.events[0]


def is_alive(state: State, holder: Holder, now_ns: int) -> bool:
    """Return True if this session of an instance sends heartbeats."""
    instance = state.instances.get(holder.instance)
    if instance is None or instance.alive_until_ns <= now_ns:
        return False
    return instance.status.holder is holder or instance.status.holder == holder


def wait(state: State, row: RequestRow) -> None:
    """Let a request wait in its class, in order of arrival."""
    row.state, row.waiting = RequestState.QUEUED, True
    if row.cls.idle:
        row.cls = state.class_row(row.cls.cls)
    row.cls.waiting.add(row.key)
    drop_at_ns = row.metadata.drop_at_ns
    if drop_at_ns is not None:
        heappush(state.drops, (drop_at_ns, row.metadata.id))


def stop_waiting(row: RequestRow) -> bool:
    """Remove a request from the order of its class; False if it did not wait."""
    if not row.waiting:
        return False
    row.waiting = False
    row.cls.waiting.remove(row.key)
    return True


def extend(row: RequestRow, token_ids: TokenIds, now_ns: int, effects: Effects) -> None:
    """Append tokens to the output log."""
    log = row.log
    effects.logged.append(Logged(row.metadata.id, len(log), token_ids, now_ns))
    # Through an array: half the time of appending one token after the other.
    log += array("I", token_ids)
    row.times.take(len(token_ids), now_ns)


def announce(
    row: RequestRow, tail: TokenIds, effects: Effects, extensions: LogExtensions = NO_LOG_EXTENSIONS
) -> None:
    """Announce the last tokens of the log, and the outcome if there is one, with the last extensions."""
    if not row.watchers:
        return
    offset = len(row.log) - len(tail)
    part = OutputSlice(row.metadata.id, offset, tail, row.outcome, row.detail, extensions=extensions)
    for watcher in row.watchers:
        effects.outputs.append((watcher, part))


def end(
    state: State,
    row: RequestRow,
    outcome: Outcome,
    detail: str,
    now_ns: int,
    effects: Effects,
    tail: TokenIds = (),
    extensions: LogExtensions = NO_LOG_EXTENSIONS,
    *,
    notify: bool = True,
) -> None:
    """End a request, and announce that with `tail` and `extensions`, its log's last entry.

    With `notify`, an event goes to the outbox if the request asks for one.
    """
    instance = row.holder.instance if row.holder else None
    if stop_waiting(row):
        effects.wakeups.append(WAKE_REMOVED)
    if row.cls.idle:
        row.cls = state.class_row(row.cls.cls)
    state.leases.remove(row)
    row.state, row.outcome, row.detail, row.ended_ns = RequestState.ENDED, outcome, detail, now_ns
    add_event(state, row, now_ns, ENDED, detail or outcome.value, instance)
    count_finished(state, row)
    state.ends.ids.append(row.metadata.id)
    effects.ended.append(row.metadata.id)
    if notify and row.metadata.extensions.notify:
        metadata = row.metadata
        event = EndEvent(subject=metadata.id, ended_as=outcome, tenant=metadata.tenant, at_ns=now_ns)
        outbox.add(state, event, now_ns, effects)
    announce(row, tail, effects, extensions)
    row.watchers = {}
    prune(state, now_ns, effects)


def count_finished(state: State, row: RequestRow) -> None:
    """Count an ended request in the statistics of its class."""
    if row.outcome is None:
        return
    if row.outcome.ok:
        row.cls.finished += 1
    row.cls.lengths.count(len(row.log), row.outcome, state.limits.lengths_window)


def prune(state: State, now_ns: int, effects: Effects) -> None:
    """Drop ended requests beyond the limits, oldest ended first."""
    before_ns = now_ns - state.limits.result_ttl_ns
    while state.ends.ids:
        row = state.requests[state.ends.ids[0]]
        ended_ns = row.ended_ns or 0
        if len(state.ends.ids) <= state.limits.results_max and ended_ns > before_ns:
            return
        state.ends.ids.popleft()
        del state.requests[row.metadata.id]
        state.arrivals.leave(state.has_arrival)
        effects.dropped.append(row.metadata.id)


def add_watcher(row: RequestRow, watcher: GatewayId) -> None:
    """Announce further output to a gateway, unless the request has ended."""
    if row.state is not RequestState.ENDED:
        row.watchers[watcher] = None
