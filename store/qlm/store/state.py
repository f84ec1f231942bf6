"""The shared state in process: its tables, and the steps that all operations are made of."""

from array import array
from collections import Counter, deque
from heapq import heappush

from qlm.domain.group import RequestClass
from qlm.domain.ids import GatewayId, GroupId, InstanceId, RequestId, TokenIds
from qlm.domain.lease import Epoch, Holder
from qlm.domain.outcome import Outcome
from qlm.domain.output import OutputSlice
from qlm.domain.request import Event, Request, RequestCard, RequestState
from qlm.store.effects import WAKE_REMOVED, Effects, Logged
from qlm.store.limits import StoreLimits
from qlm.store.order import ArrivalHistory, ArrivalKey
from qlm.store.tables import ClassRow, GroupRow, InstanceRow, LeaderRow, QueueRow, RequestRow


class SharedState:
    """Tables of requests, classes, groups, virtual queues and instances.

    Synchronous and deterministic: times are arguments, in nanoseconds since the epoch. Operations
    return their answer with the `Effects` they cause, and send nothing themselves.

    Attributes:
        incarnation: Identity of this content.
        limits: How much is kept.
        indexed: Whether the global queue was read into it.
    """

    def __init__(self, incarnation: int, limits: StoreLimits | None = None) -> None:
        self.incarnation = incarnation
        self.limits = limits or StoreLimits()
        self.indexed = False
        self._rows: dict[RequestId, RequestRow] = {}
        self._by_arrival = ArrivalHistory()
        self._held: dict[RequestId, RequestRow] = {}
        self._leased: Counter[InstanceId] = Counter()
        self._drops: list[tuple[int, RequestId]] = []
        self._ended: deque[RequestId] = deque()
        self._classes: dict[RequestClass, ClassRow] = {}
        self._groups: dict[GroupId, GroupRow] = {}
        self._queues: dict[InstanceId, QueueRow] = {}
        self._instances: dict[InstanceId, InstanceRow] = {}
        self._unplaced: dict[InstanceId, tuple[int, str]] = {}
        self._restored: dict[RequestId, tuple[TokenIds, int]] = {}
        self._leader: LeaderRow | None = None
        self._terms = 0

    # rows

    def _class(self, cls: RequestClass) -> ClassRow:
        row = self._classes.get(cls)
        if row is None:
            row = self._classes[cls] = ClassRow(cls)
        return row

    def _add(self, card: RequestCard, now_ns: int) -> RequestRow:
        """Index a new request; it does not wait yet."""
        if isinstance(card, Request):
            card = card.card()
        row = RequestRow(card, self._class(card.cls))
        self._rows[card.id] = row
        self._by_arrival.add(row.key)
        row.cls.accept(card)
        restored = self._restored.pop(card.id, None)
        if restored is not None:
            row.log.extend(restored[0])
            row.first_token_ns = restored[1]
        self._note(row, now_ns, "accepted")
        return row

    def _is_kept(self, key: ArrivalKey) -> bool:
        row = self._rows.get(key[1])
        return row is not None and row.card.arrival_ns == key[0]

    def _note(
        self, row: RequestRow, now_ns: int, what: str, why: str = "", instance: InstanceId | None = None
    ) -> None:
        row.events.append(Event(now_ns, what, why, instance))
        if len(row.events) > self.limits.events_max:
            del row.events[0]

    def _alive(self, holder: Holder, now_ns: int) -> bool:
        instance = self._instances.get(holder.instance)
        if instance is None or instance.alive_until_ns <= now_ns:
            return False
        return instance.status.holder is holder or instance.status.holder == holder

    def _is_current(self, row: RequestRow, epoch: Epoch) -> bool:
        return epoch.n == row.n and epoch.incarnation == self.incarnation

    # transitions

    def _wait(self, row: RequestRow) -> None:
        row.state, row.waiting = RequestState.QUEUED, True
        row.cls.waiting.add(row.key)
        drop_at_ns = row.card.drop_at_ns
        if drop_at_ns is not None:
            heappush(self._drops, (drop_at_ns, row.card.id))

    def _stop_waiting(self, row: RequestRow) -> bool:
        """Take a request out of its class's order; False if it was not in."""
        if not row.waiting:
            return False
        row.waiting = False
        row.cls.waiting.remove(row.key)
        return True

    def _unhold(self, row: RequestRow) -> None:
        if row.holder is not None:
            self._leased[row.holder.instance] -= 1
        row.holder = None
        self._held.pop(row.card.id, None)

    def _extend(self, row: RequestRow, token_ids: TokenIds, now_ns: int, effects: Effects) -> None:
        log = row.log
        effects.logged.append(Logged(row.card.id, len(log), token_ids, now_ns))
        # Through an array: half as long as one token after the other.
        log += array("I", token_ids)
        if row.first_token_ns is None:
            row.first_token_ns = now_ns

    def _announce(self, row: RequestRow, tail: TokenIds, effects: Effects) -> None:
        """Announce the end of the log, and the outcome if there is one."""
        if not row.watchers:
            return
        part = OutputSlice(row.card.id, len(row.log) - len(tail), tail, row.outcome, row.detail)
        for watcher in row.watchers:
            effects.outputs.append((watcher, part))

    def _end(
        self,
        row: RequestRow,
        outcome: Outcome,
        detail: str,
        now_ns: int,
        effects: Effects,
        tail: TokenIds = (),
    ) -> None:
        """End a request, and announce that together with `tail`, the end of its log not yet announced."""
        instance = row.holder.instance if row.holder else None
        if self._stop_waiting(row):
            effects.wakeups.append(WAKE_REMOVED)
        self._unhold(row)
        row.state, row.outcome, row.detail, row.ended_ns = RequestState.ENDED, outcome, detail, now_ns
        self._note(row, now_ns, "ended", detail or outcome.value, instance)
        self._count_finished(row)
        self._ended.append(row.card.id)
        effects.ended.append(row.card.id)
        self._announce(row, tail, effects)
        row.watchers = {}
        self._prune(now_ns, effects)

    def _count_finished(self, row: RequestRow) -> None:
        if row.outcome is None:
            return
        if row.outcome.ok:
            row.cls.finished += 1
        row.cls.lengths.count(len(row.log), row.outcome, self.limits.lengths_window)

    def _prune(self, now_ns: int, effects: Effects) -> None:
        """Drop ended requests beyond the limits, oldest ended first."""
        before_ns = now_ns - self.limits.result_ttl_ns
        while self._ended:
            row = self._rows[self._ended[0]]
            ended_ns = row.ended_ns or 0
            if len(self._ended) <= self.limits.results_max and ended_ns > before_ns:
                return
            self._ended.popleft()
            del self._rows[row.card.id]
            self._by_arrival.leave(self._is_kept)
            effects.dropped.append(row.card.id)

    def _watch(self, row: RequestRow, watcher: GatewayId) -> None:
        if row.state is not RequestState.ENDED:
            row.watchers[watcher] = None
