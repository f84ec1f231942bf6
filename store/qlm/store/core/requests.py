"""Operations on requests: index, look up, cancel, expire, restore."""

from collections.abc import Iterable, Sequence
from heapq import heappop

from qlm.domain.formats.extensions import LogExtensions
from qlm.domain.group import RequestClass
from qlm.domain.ids import GatewayId, InstanceId, RequestId, TokenIds
from qlm.domain.notices import CancelAsked, QueueChanged
from qlm.domain.outcome import Outcome
from qlm.domain.ports.store import WAKE_JOINED
from qlm.domain.request import RequestMetadata, RequestRecord, RequestState
from qlm.domain.view import Enqueued, RequestFilter, RequestPosition
from qlm.store.core.effects import WAKE_REQUEST, Effects
from qlm.store.core.lifecycle import (
    add_event,
    add_request,
    add_watcher,
    count_finished,
    end,
    is_alive,
    prune,
    wait,
)
from qlm.store.core.limits import NOTIFY_WITHIN
from qlm.store.core.state import RestoredLog, State
from qlm.store.core.tables import Cancel, GroupRow, RequestRow


def enqueue(
    state: State, metadata: RequestMetadata, watcher: GatewayId | None, now_ns: int
) -> tuple[Enqueued, Effects]:
    created, effects = index(state, metadata, watcher, now_ns)
    record = state.requests[metadata.id].record()
    return Enqueued(created=created, record=record), effects


def index(
    state: State, metadata: RequestMetadata, watcher: GatewayId | None, now_ns: int
) -> tuple[bool, Effects]:
    """Do what `enqueue` does, but return only True if the request is new, without its record."""
    effects = Effects()
    row = state.requests.get(metadata.id)
    created = row is None
    if row is None:
        row = add_request(state, metadata, now_ns)
        wait(state, row)
        joined = _join_newest_group(state, row, effects)
        effects.wakeups.append(WAKE_JOINED if joined else WAKE_REQUEST)
    if watcher is not None and row.metadata.is_same_request(metadata):
        add_watcher(row, watcher)
    return created, effects


def _join_newest_group(state: State, row: RequestRow, effects: Effects) -> bool:
    """Add a request to the newest group of its class; False if it is in no virtual queue, or sealed."""
    newest = row.cls.groups[-1] if row.cls.groups else None
    if newest is None or newest.sealed or newest.queue is None:
        return False
    newest.count += 1
    if _is_near_front(state, newest, newest.queue):
        effects.notices.append((newest.queue, QueueChanged()))
    return True


def _is_near_front(state: State, group: GroupRow, instance: InstanceId) -> bool:
    """Return True if the end of a group is among the first `NOTIFY_WITHIN` requests of a virtual queue."""
    waiting = 0
    for id in state.queues[instance].groups:
        each = state.groups[id]
        waiting += each.remaining
        if waiting > NOTIFY_WITHIN:
            return False
        if each is group:
            break
    return True


def record(state: State, id: RequestId) -> RequestRecord | None:
    row = state.requests.get(id)
    return row.record() if row else None


def records(state: State, where: RequestFilter) -> Sequence[RequestRecord]:
    found: list[RequestRecord] = []
    for row in _candidates(state, where.state):
        if len(found) >= where.limit:
            break
        if where.state in (None, row.state) and where.model in (None, row.metadata.model):
            found.append(row.record())
    return found


def _candidates(state: State, wanted: RequestState | None) -> Iterable[RequestRow]:
    if wanted in (RequestState.RUNNING, RequestState.PARKED):
        return sorted(state.leases.rows.values(), key=lambda row: row.key, reverse=True)
    return (state.requests[id] for id in state.arrivals.newest_first(state.has_arrival))


def queue_position(state: State, id: RequestId) -> RequestPosition | None:
    row = state.requests.get(id)
    return row.cls.position_of(row.key) if row is not None and row.waiting else None


def cancel(
    state: State, id: RequestId, outcome: Outcome, now_ns: int, why: str = ""
) -> tuple[RequestRecord | None, Effects]:
    effects = Effects()
    row = state.requests.get(id)
    if row is None:
        return None, effects
    if row.state is not RequestState.ENDED:
        _cancel(state, row, outcome, why, now_ns, effects)
    return row.record(), effects


def withdraw(state: State, metadata: RequestMetadata, now_ns: int) -> tuple[bool, Effects]:
    effects = Effects()
    if metadata.id in state.requests:
        return False, effects
    row = add_request(state, metadata, now_ns)
    end(state, row, Outcome.CANCELLED, "", now_ns, effects, notify=False)  # its client knows
    return True, effects


def _cancel(state: State, row: RequestRow, outcome: Outcome, why: str, now_ns: int, effects: Effects) -> None:
    if row.holder is None or not is_alive(state, row.holder, now_ns):
        asked = row.cancel or Cancel(outcome, why)
        end(state, row, asked.outcome, asked.why, now_ns, effects)
        return
    if row.cancel is None:
        row.cancel = Cancel(outcome, why)
        add_event(state, row, now_ns, "cancel_asked", why or outcome.value, row.holder.instance)
    notice = CancelAsked(id=row.metadata.id, outcome=row.cancel.outcome)
    effects.notices.append((row.holder.instance, notice))


def expire(state: State, now_ns: int, limit: int = 1000) -> tuple[Sequence[RequestId], Effects]:
    effects = Effects()
    expired: list[RequestId] = []
    drops = state.drops
    while drops and drops[0][0] <= now_ns and len(expired) < limit:
        drop_at_ns, id = heappop(drops)
        row = state.requests.get(id)
        # A request pulled, ended or replaced since leaves its old entry in the heap.
        if row is None or row.state is not RequestState.QUEUED or row.metadata.drop_at_ns != drop_at_ns:
            continue
        if not (row.log and row.metadata.answered_by_first_token):
            end(state, row, Outcome.EXPIRED, "", now_ns, effects)
            expired.append(id)
    prune(state, now_ns, effects)
    return expired, effects


def waiting(state: State, cls: RequestClass) -> Sequence[RequestId]:
    row = state.classes.rows.get(cls)
    return [] if row is None else row.waiting.ids()


def end_waiting(
    state: State, ids: Sequence[RequestId], outcome: Outcome, detail: str, now_ns: int
) -> tuple[Sequence[RequestId], Effects]:
    effects = Effects()
    ended = [id for id in ids if id in state.requests and state.requests[id].state is RequestState.QUEUED]
    for id in ended:
        end(state, state.requests[id], outcome, detail, now_ns, effects)
    if ids:
        prune(state, now_ns, effects)
    return ended, effects


# restored from a journal


def restore_log(state: State, id: RequestId, log: RestoredLog) -> None:
    """Keep the log of an unfinished request until its message is indexed again."""
    state.restored[id] = log


def restore_ended(
    state: State, ended: RequestRecord, token_ids: TokenIds, detail: str, extensions: LogExtensions
) -> None:
    """Restore an ended request; call in the order in which they ended."""
    row = RequestRow(ended.metadata, state.class_row(ended.metadata.cls), RequestState.ENDED)
    row.log.extend(token_ids)
    row.extensions = extensions
    row.outcome, row.detail = ended.outcome, detail
    row.ended_ns = ended.ended_ns
    row.times.first_ns = ended.first_token_ns
    row.events = list(ended.events)
    if row.times.timeline is not None and ended.reader_late_s is not None:
        row.times.timeline.late_s = ended.reader_late_s
    else:
        row.times.timeline = None  # unknown
    state.requests[ended.metadata.id] = row
    state.arrivals.add(row.key)
    state.ends.ids.append(ended.metadata.id)
    row.cls.accept(ended.metadata)
    if not ended.erased:  # else the length of its answer is unknown
        count_finished(state, row)
