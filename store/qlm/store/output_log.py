"""Operations on output logs: append, read, watch."""

from collections.abc import Sequence

from qlm.domain.ids import GatewayId, RequestId
from qlm.domain.output import AppendResult, LogEntry, OutputSlice
from qlm.domain.request import RequestState
from qlm.store.effects import Effects
from qlm.store.leases import LeaseOps
from qlm.store.tables import RequestRow


class OutputOps(LeaseOps):
    """The output part of the core; each method is the `Store` method of its name."""

    def append(self, entries: Sequence[LogEntry], now_ns: int) -> tuple[Sequence[AppendResult], Effects]:
        """Append to output logs, end requests, and announce both to their watchers, entry by entry."""
        effects = Effects()
        return [self._append(entry, now_ns, effects) for entry in entries], effects

    def _append(self, entry: LogEntry, now_ns: int, effects: Effects) -> AppendResult:
        row = self._rows.get(entry.id)
        if row is None:
            return AppendResult.UNKNOWN
        refusal = self._append_refusal(row, entry)
        if refusal is not None:
            return refusal
        token_ids = entry.token_ids
        if token_ids:
            self._extend(row, token_ids, now_ns, effects)
        if entry.outcome is not None:
            self._end(row, entry.outcome, entry.detail, now_ns, effects, token_ids)
        elif token_ids:
            self._announce(row, token_ids, effects)
        return AppendResult.TAKEN

    def _append_refusal(self, row: RequestRow, entry: LogEntry) -> AppendResult | None:
        if row.state is RequestState.ENDED:
            return AppendResult.ENDED
        if entry.epoch.incarnation < self.incarnation:
            return AppendResult.UNKNOWN
        if row.holder is None or not self._is_current(row, entry.epoch):
            return AppendResult.STALE
        if entry.offset != len(row.log):
            return AppendResult.GAP
        return None

    def read_output(self, id: RequestId, offset: int) -> OutputSlice | None:
        """Return the log from `offset` on, with the outcome if ended; None if the request is unknown."""
        row = self._rows.get(id)
        if row is None:
            return None
        start = min(max(offset, 0), len(row.log))
        return OutputSlice(
            id=id, offset=start, token_ids=row.tokens(start), outcome=row.outcome, detail=row.detail
        )

    def watch(self, id: RequestId, watcher: GatewayId) -> None:
        """Announce further output of a request to this gateway, too."""
        row = self._rows.get(id)
        if row is not None:
            self._watch(row, watcher)

    def unwatch(self, id: RequestId, watcher: GatewayId) -> int:
        """Stop announcing to this gateway; return how many other watchers remain."""
        row = self._rows.get(id)
        if row is None:
            return 0
        row.watchers.pop(watcher, None)
        return len(row.watchers)
