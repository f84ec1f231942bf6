"""Operations on output logs: append, read, watch."""

from collections.abc import Sequence
from typing import Final

from qlm.domain.formats.extensions import NO_LOG_EXTENSIONS, merged, only_logprobs
from qlm.domain.ids import GatewayId, RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.output import AppendResult, LogEntry, OutputSlice
from qlm.domain.request import ENDED, ERASED, RequestMetadata, RequestState, ends_erased
from qlm.store.core.effects import Effects
from qlm.store.core.lifecycle import add_event, add_watcher, announce, end, extend, wait
from qlm.store.core.state import State
from qlm.store.core.tables import RequestRow

BY_CLIENT: Final = "its client erased it"
"""Detail of an erased request."""


def append(state: State, entries: Sequence[LogEntry], now_ns: int) -> tuple[Sequence[AppendResult], Effects]:
    effects = Effects()
    return [refusal(state, entry) or _take(state, entry, now_ns, effects) for entry in entries], effects


def append_some(
    state: State, entries: Sequence[LogEntry], refusals: Sequence[AppendResult | None], now_ns: int
) -> tuple[Sequence[AppendResult], Effects]:
    """Append entries of different requests but those with a `refusal`, which has just been read."""
    effects = Effects()
    both = zip(entries, refusals, strict=True)
    return [refused or _take(state, entry, now_ns, effects) for entry, refused in both], effects


def refusal(state: State, entry: LogEntry) -> AppendResult | None:
    """Return why an entry would not be appended; None if it would."""
    row = state.requests.get(entry.id)
    if row is None:
        return AppendResult.UNKNOWN
    if row.state is RequestState.ENDED:
        return AppendResult.ENDED
    same = row.epoch is entry.epoch or row.epoch == entry.epoch
    if not same and entry.epoch.incarnation < row.epoch.incarnation:
        return AppendResult.UNKNOWN
    if row.holder is None or not same:
        return AppendResult.STALE
    if entry.offset != len(row.log):
        return AppendResult.GAP
    return None


def _take(state: State, entry: LogEntry, now_ns: int, effects: Effects) -> AppendResult:
    row, token_ids = state.requests[entry.id], entry.token_ids
    if token_ids:
        extend(row, token_ids, now_ns, effects)
    if entry.extensions is not NO_LOG_EXTENSIONS:
        effects.extend(entry.id, row.extensions, entry.extensions)
        row.extensions = merged(row.extensions, entry.extensions)
    if entry.outcome is not None:
        detail = _detail(row, entry)
        end(state, row, entry.outcome, detail, now_ns, effects, token_ids, entry.extensions)
    elif token_ids:
        announce(row, token_ids, effects, only_logprobs(entry.extensions))
    return AppendResult.TAKEN


def _detail(row: RequestRow, entry: LogEntry) -> str:
    """Return the reason of an end; of a cancelled request, that of the cancel, which its agent lacks."""
    asked = row.cancel
    return asked.why if asked and asked.why and asked.outcome is entry.outcome else entry.detail


def read_output(state: State, id: RequestId, offset: int) -> OutputSlice | None:
    row = state.requests.get(id)
    if row is None:
        return None
    start = min(max(offset, 0), len(row.log))
    outcome = (
        Outcome.OUTPUT_LOST if ends_erased(row.events) and row.outcome and row.outcome.ok else row.outcome
    )
    return OutputSlice(
        id, start, row.tokens(start), outcome, row.detail, row.metadata.fingerprint, row.extensions
    )


def erase(state: State, metadata: RequestMetadata, now_ns: int) -> tuple[bool, Effects]:
    effects = Effects()
    row = state.requests.get(metadata.id)
    if row is None or row.state is not RequestState.ENDED or not row.metadata.is_same_request(metadata):
        return False, effects
    if not ends_erased(row.events):
        del row.log[:]
        row.metadata, row.extensions = metadata.without_texts(), NO_LOG_EXTENSIONS
        row.detail = BY_CLIENT
        _forget_detail(row)
        add_event(state, row, now_ns, ERASED)
        effects.ended.append(metadata.id)  # written again, as it is now
    return True, effects


def _forget_detail(row: RequestRow) -> None:
    """Leave no detail in the event of an end: it may quote its client."""
    outcome = row.outcome.value if row.outcome else ""
    row.events = [each._replace(why=outcome) if each.what == ENDED else each for each in row.events]


def watch(state: State, metadata: RequestMetadata, watcher: GatewayId) -> None:
    row = state.requests.get(metadata.id)
    if row is not None and row.metadata.is_same_request(metadata):
        add_watcher(row, watcher)
        if row.state is RequestState.QUEUED and not row.waiting:
            wait(state, row)


def unwatch(state: State, id: RequestId, watcher: GatewayId) -> int:
    row = state.requests.get(id)
    if row is None:
        return 0
    row.watchers.pop(watcher, None)
    return len(row.watchers)
