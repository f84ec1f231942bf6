"""Operations on requests: index, look up, cancel, expire."""

from collections.abc import Iterable, Sequence
from heapq import heappop

from qlm.domain.ids import GatewayId, InstanceId, RequestId, TokenIds
from qlm.domain.notices import CancelAsked, QueueChanged
from qlm.domain.outcome import Outcome
from qlm.domain.request import RequestCard, RequestRecord, RequestState
from qlm.domain.view import Enqueued, QueuePlace, RequestFilter
from qlm.store.effects import WAKE_REQUEST, Effects
from qlm.store.leading import LeadOps
from qlm.store.limits import UNTOLD_AHEAD
from qlm.store.tables import GroupRow, RequestRow


class RequestOps(LeadOps):
    """The request part of the core; each method is the `Store` method of its name."""

    def enqueue(self, card: RequestCard, watcher: GatewayId | None, now_ns: int) -> tuple[Enqueued, Effects]:
        """Index an accepted request as waiting, unless its id is known; add the watcher either way."""
        created, effects = self.index(card, watcher, now_ns)
        record = self._rows[card.id].record(self.incarnation)
        return Enqueued(created=created, record=record), effects

    def index(self, card: RequestCard, watcher: GatewayId | None, now_ns: int) -> tuple[bool, Effects]:
        """Do what `enqueue` does, for callers that need not see the record; return whether it is new."""
        effects = Effects()
        row = self._rows.get(card.id)
        created = row is None
        if row is None:
            row = self._add(card, now_ns)
            self._wait(row)
            self._join_newest_group(row, effects)
            effects.wakeups.append(WAKE_REQUEST)
        if watcher is not None:
            self._watch(row, watcher)
        return created, effects

    def _join_newest_group(self, row: RequestRow, effects: Effects) -> None:
        newest = row.cls.groups[-1] if row.cls.groups else None
        if newest is None or newest.sealed or newest.queue is None:
            return
        newest.count += 1
        if self._is_soon_reached(newest, newest.queue):
            effects.notices.append((newest.queue, QueueChanged()))

    def _is_soon_reached(self, group: GroupRow, instance: InstanceId) -> bool:
        """Whether an instance has so little to do up to this group that it must be told of one more."""
        ahead = 0
        for id in self._queues[instance].groups:
            each = self._groups[id]
            ahead += each.count - each.pulled
            if ahead > UNTOLD_AHEAD:
                return False
            if each is group:
                break
        return True

    def record(self, id: RequestId) -> RequestRecord | None:
        """Return what is known of a request."""
        row = self._rows.get(id)
        return row.record(self.incarnation) if row else None

    def records(self, where: RequestFilter) -> Sequence[RequestRecord]:
        """List records, newest arrival first."""
        found: list[RequestRecord] = []
        for row in self._candidates(where.state):
            if len(found) >= where.limit:
                break
            if where.state in (None, row.state) and where.model in (None, row.card.model):
                found.append(row.record(self.incarnation))
        return found

    def _candidates(self, state: RequestState | None) -> Iterable[RequestRow]:
        if state in (RequestState.RUNNING, RequestState.PARKED):
            return sorted(self._held.values(), key=lambda row: row.key, reverse=True)
        return (self._rows[id] for id in self._by_arrival.newest_first(self._is_kept))

    def queue_place(self, id: RequestId) -> QueuePlace | None:
        """Tell where a request stands in the order of its class, and in its group; None unless it waits."""
        row = self._rows.get(id)
        return row.cls.place_of(row.key) if row is not None and row.waiting else None

    def cancel(self, id: RequestId, outcome: Outcome, now_ns: int) -> tuple[RequestRecord | None, Effects]:
        """End a request that nobody runs at once, or ask the live holder of one to end it."""
        effects = Effects()
        row = self._rows.get(id)
        if row is None:
            return None, effects
        if row.state is not RequestState.ENDED:
            self._cancel(row, outcome, now_ns, effects)
        return row.record(self.incarnation), effects

    def withdraw(self, card: RequestCard, now_ns: int) -> tuple[bool, Effects]:
        """Note as cancelled, in one step, a request that was not accepted, unless its id is known."""
        effects = Effects()
        if card.id in self._rows:
            return False, effects
        self._end(self._add(card, now_ns), Outcome.CANCELLED, "", now_ns, effects)
        return True, effects

    def _cancel(self, row: RequestRow, outcome: Outcome, now_ns: int, effects: Effects) -> None:
        if row.holder is None or not self._alive(row.holder, now_ns):
            self._end(row, row.cancel or outcome, "", now_ns, effects)
            return
        if row.cancel is None:
            row.cancel = outcome
            self._note(row, now_ns, "cancel_asked", outcome.value, row.holder.instance)
        notice = CancelAsked(id=row.card.id, outcome=row.cancel)
        effects.notices.append((row.holder.instance, notice))

    def expire(self, now_ns: int, limit: int = 1000) -> tuple[Sequence[RequestId], Effects]:
        """End as expired the waiting requests whose `drop_at_ns` has passed; return their ids."""
        effects = Effects()
        expired: list[RequestId] = []
        while self._drops and self._drops[0][0] <= now_ns and len(expired) < limit:
            drop_at_ns, id = heappop(self._drops)
            row = self._rows.get(id)
            # A request pulled, ended or replaced since leaves its old entry in the heap.
            if row is None or row.state is not RequestState.QUEUED or row.card.drop_at_ns != drop_at_ns:
                continue
            if not (row.log and row.card.answered_by_first_token):
                self._end(row, Outcome.EXPIRED, "", now_ns, effects)
                expired.append(id)
        self._prune(now_ns, effects)
        return expired, effects

    # what outlived a crash

    def restore_log(self, id: RequestId, token_ids: TokenIds, first_token_ns: int) -> None:
        """Keep the log of an unfinished request until its message is indexed again."""
        self._restored[id] = (token_ids, first_token_ns)

    def restore_ended(self, record: RequestRecord, token_ids: TokenIds, detail: str) -> None:
        """Put back an ended request; call in the order in which they ended."""
        row = RequestRow(record.card, self._class(record.card.cls), RequestState.ENDED)
        row.log.extend(token_ids)
        row.outcome, row.detail = record.outcome, detail
        row.first_token_ns, row.ended_ns = record.first_token_ns, record.ended_ns
        row.events = list(record.events)
        self._rows[record.card.id] = row
        self._by_arrival.add(row.key)
        self._ended.append(record.card.id)
        row.cls.accept(record.card)
        self._count_finished(row)
