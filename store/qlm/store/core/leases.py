"""Operations on leases: the instance that runs a request."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final

from qlm.domain.ids import GroupId, RequestId, TokenIds
from qlm.domain.lease import Epoch, Holder, Lease
from qlm.domain.lease_answer import Granted, IdTaken, LeaseAnswer, LeaseHeldElsewhere, Over
from qlm.domain.notices import CancelAsked
from qlm.domain.request import Request, RequestMetadata, RequestState
from qlm.domain.slo import TokenSlo
from qlm.store.core.effects import WAKE_RETURNED, Effects
from qlm.store.core.lifecycle import (
    add_event,
    add_request,
    announce,
    end,
    extend,
    is_alive,
    stop_waiting,
    wait,
)
from qlm.store.core.state import State
from qlm.store.core.tables import RequestRow

_HOLDER: Final[Callable[[RequestRow], Holder | None]] = attrgetter("holder")

HOLDER_LOST: Final = "its instance was lost"
"""Reason in the event history of a request whose holder died."""


def lease(
    state: State, metadata: RequestMetadata, holder: Holder, group: GroupId | None, now_ns: int
) -> tuple[LeaseAnswer, Effects]:
    effects = Effects()
    row = state.requests.get(metadata.id)
    if row is None:
        row = add_request(state, metadata, now_ns)
    refusal = _refusal(state, row, metadata, holder, now_ns)
    if refusal is None and row.cancel is not None:
        end(state, row, *row.cancel, now_ns, effects)
        refusal = Over(outcome=row.cancel.outcome)
    if refusal is not None:
        return refusal, effects
    if stop_waiting(row):
        _count_pull(state, row, group)
    return _grant(state, row, holder, "leased", now_ns), effects


def _refusal(
    state: State, row: RequestRow, metadata: RequestMetadata, holder: Holder, now_ns: int
) -> LeaseHeldElsewhere | Over | IdTaken | None:
    if not row.metadata.is_same_request(metadata):
        return IdTaken()
    if row.outcome is not None:
        return Over(outcome=row.outcome)
    if row.holder is not None and row.holder != holder and is_alive(state, row.holder, now_ns):
        return LeaseHeldElsewhere(holder=row.holder)
    return None


def _count_pull(state: State, row: RequestRow, id: GroupId | None) -> None:
    group = state.groups.get(id) if id is not None else None
    if group and group.cls is row.cls and group.remaining:
        group.pulled += 1


def _grant(state: State, row: RequestRow, holder: Holder, what: str, now_ns: int) -> Granted:
    state.leases.remove(row)
    row.state, row.holder = RequestState.RUNNING, holder
    row.epoch = Epoch(row.epoch.incarnation, row.epoch.n + 1)
    state.leases.add(row, holder.instance)
    add_event(state, row, now_ns, what, "", holder.instance)
    extensions = row.extensions
    return Granted(
        lease=Lease(holder, row.epoch),
        output=row.tokens(),
        preemptions=extensions.preemptions or 0,
        engine_losses=extensions.engine_losses or 0,
    )


def park(state: State, id: RequestId, epoch: Epoch, why: str, now_ns: int) -> tuple[bool, Effects]:
    return _move(state, id, epoch, RequestState.PARKED, "evicted", why, now_ns), Effects()


def resume(state: State, id: RequestId, epoch: Epoch, now_ns: int) -> tuple[bool, Effects]:
    return _move(state, id, epoch, RequestState.RUNNING, "resumed", "", now_ns), Effects()


def _move(
    state: State, id: RequestId, epoch: Epoch, to: RequestState, what: str, why: str, now_ns: int
) -> bool:
    row = _leased(state, id, epoch)
    if row is None:
        return False
    if row.state is not to:
        row.state = to
        add_event(state, row, now_ns, what, why, row.holder.instance if row.holder else None)
    return True


def _leased(state: State, id: RequestId, epoch: Epoch) -> RequestRow | None:
    """Return the row if `epoch` is that of its present lease."""
    row = state.requests.get(id)
    if row is None or row.holder is None or row.epoch != epoch:
        return None
    return row


def release(state: State, id: RequestId, epoch: Epoch, why: str, now_ns: int) -> tuple[bool, Effects]:
    effects = Effects()
    row = _leased(state, id, epoch)
    if row is None:
        return False, effects
    _put_back(state, row, why, now_ns, effects)
    return True, effects


def demote(
    state: State, metadata: RequestMetadata, epoch: Epoch, why: str, now_ns: int
) -> tuple[bool, Effects]:
    effects = Effects()
    row = state.requests.get(metadata.id)
    if row is None:
        wait(state, add_request(state, metadata, now_ns))
        effects.wakeups.append(WAKE_RETURNED)
        return True, effects
    if row.outcome is not None or not row.metadata.is_same_request(metadata):
        return False, effects
    if row.holder is not None and row.epoch != epoch:
        return False, effects
    stop_waiting(row)
    if row.metadata.cls != metadata.cls:
        row.metadata = metadata.metadata() if isinstance(metadata, Request) else metadata
        row.cls = state.class_row(metadata.cls)
        row.cls.accept(row.metadata)
        row.cls.kept += _first_token_in_time(row)
    _put_back(state, row, why, now_ns, effects)
    return True, effects


def _first_token_in_time(row: RequestRow) -> bool:
    slo, first_ns = row.metadata.slo, row.times.first_ns
    if not isinstance(slo, TokenSlo) or first_ns is None:
        return False
    return first_ns - row.metadata.arrival_ns <= slo.ttft_ms * 1e6


def _put_back(state: State, row: RequestRow, why: str, now_ns: int, effects: Effects) -> None:
    instance = row.holder.instance if row.holder else None
    add_event(state, row, now_ns, "returned", why, instance)
    if row.cancel is not None:
        end(state, row, *row.cancel, now_ns, effects)
        return
    state.leases.remove(row)
    wait(state, row)
    effects.wakeups.append(WAKE_RETURNED)


def expire_leases(state: State, now_ns: int) -> tuple[Sequence[RequestId], Effects]:
    """Release the leases of dead holders, oldest request first; return the ids."""
    effects = Effects()
    rows = state.leases.rows
    # All rows of a holder share one object: thousands of rows, but few holders to look up.
    each = list(map(_HOLDER, rows.values()))
    holders = dict(zip(map(id, each), each, strict=True))
    gone = {key for key, holder in holders.items() if holder and not is_alive(state, holder, now_ns)}
    dead = [row for row in rows.values() if id(row.holder) in gone] if gone else []
    dead.sort(key=lambda row: row.key)
    for row in dead:
        _put_back(state, row, HOLDER_LOST, now_ns, effects)
    return [row.metadata.id for row in dead], effects


def reregister(
    state: State, metadata: RequestMetadata, holder: Holder, output: TokenIds, now_ns: int
) -> tuple[LeaseAnswer, Effects]:
    effects = Effects()
    row = state.requests.get(metadata.id)
    if row is None:
        row = add_request(state, metadata, now_ns)
    refusal = _refusal(state, row, metadata, holder, now_ns)
    if refusal is not None:
        return refusal, effects
    stop_waiting(row)
    log = row.tokens()
    if log == tuple(output[: len(log)]) and (tail := output[len(log) :]):
        extend(row, tail, now_ns, effects)
        announce(row, tail, effects)
    if row.cancel is not None:
        notice = CancelAsked(id=row.metadata.id, outcome=row.cancel.outcome)
        effects.notices.append((holder.instance, notice))
    return _grant(state, row, holder, "restored", now_ns), effects
