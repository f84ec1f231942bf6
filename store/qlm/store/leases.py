"""Operations on leases: who runs a request."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final

from qlm.domain.ids import GroupId, RequestId, TokenIds
from qlm.domain.leadership import Term
from qlm.domain.lease import Epoch, Holder, Lease
from qlm.domain.lease_answer import Granted, Held, LeaseAnswer, Over
from qlm.domain.notices import CancelAsked
from qlm.domain.request import Request, RequestCard, RequestState
from qlm.store.effects import WAKE_RETURNED, Effects
from qlm.store.requests import RequestOps
from qlm.store.tables import RequestRow

_HOLDER: Final[Callable[[RequestRow], Holder | None]] = attrgetter("holder")

HOLDER_LOST: Final = "its instance was lost"
"""Why a request returned that nobody released."""


class LeaseOps(RequestOps):
    """The lease part of the core; each method is the `Store` method of its name."""

    def lease(
        self, card: RequestCard, holder: Holder, group: GroupId | None, now_ns: int
    ) -> tuple[LeaseAnswer, Effects]:
        """Take the lease of a request whose message `holder` has in hand; index it if unknown."""
        effects = Effects()
        row = self._rows.get(card.id)
        if row is None:
            row = self._add(card, now_ns)
        refusal = self._refusal(row, holder, now_ns)
        if refusal is None and row.cancel is not None:
            self._end(row, row.cancel, "", now_ns, effects)
            refusal = Over(outcome=row.cancel)
        if refusal is not None:
            return refusal, effects
        if self._stop_waiting(row):
            self._count_pull(row, group)
        return self._grant(row, holder, "leased", now_ns), effects

    def _refusal(self, row: RequestRow, holder: Holder, now_ns: int) -> Held | Over | None:
        if row.outcome is not None:
            return Over(outcome=row.outcome)
        if row.holder is not None and row.holder != holder and self._alive(row.holder, now_ns):
            return Held(holder=row.holder)
        return None

    def _count_pull(self, row: RequestRow, id: GroupId | None) -> None:
        group = self._groups.get(id) if id is not None else None
        if group and group.cls is row.cls and group.remaining:
            group.pulled += 1

    def _grant(self, row: RequestRow, holder: Holder, what: str, now_ns: int) -> Granted:
        self._unhold(row)
        row.state, row.holder = RequestState.RUNNING, holder
        self._leased[holder.instance] += 1
        row.n += 1
        self._held[row.card.id] = row
        self._note(row, now_ns, what, "", holder.instance)
        lease = Lease(holder, Epoch(self.incarnation, row.n))
        return Granted(lease=lease, output=row.tokens())

    def park(self, id: RequestId, epoch: Epoch, why: str, now_ns: int) -> tuple[bool, Effects]:
        """Note that the holder has evicted the request and keeps it."""
        return self._move(id, epoch, RequestState.PARKED, "evicted", why, now_ns), Effects()

    def resume(self, id: RequestId, epoch: Epoch, now_ns: int) -> tuple[bool, Effects]:
        """Note that the holder runs a parked request again."""
        return self._move(id, epoch, RequestState.RUNNING, "resumed", "", now_ns), Effects()

    def _move(
        self, id: RequestId, epoch: Epoch, state: RequestState, what: str, why: str, now_ns: int
    ) -> bool:
        row = self._current(id, epoch)
        if row is None:
            return False
        if row.state is not state:
            row.state = state
            self._note(row, now_ns, what, why, row.holder.instance if row.holder else None)
        return True

    def _current(self, id: RequestId, epoch: Epoch) -> RequestRow | None:
        """Return the row if `epoch` is that of its present lease."""
        row = self._rows.get(id)
        if row is None or row.holder is None or not self._is_current(row, epoch):
            return None
        return row

    def release(self, id: RequestId, epoch: Epoch, why: str, now_ns: int) -> tuple[bool, Effects]:
        """Give the lease back: the request waits again, unless its end was asked for meanwhile."""
        effects = Effects()
        row = self._current(id, epoch)
        if row is None:
            return False, effects
        self._put_back(row, why, now_ns, effects)
        return True, effects

    def demote(self, card: RequestCard, epoch: Epoch, why: str, now_ns: int) -> tuple[bool, Effects]:
        """Give the lease back and let the request wait in the class of `card`."""
        effects = Effects()
        row = self._rows.get(card.id)
        if row is None:
            self._wait(self._add(card, now_ns))
            effects.wakeups.append(WAKE_RETURNED)
            return True, effects
        if row.outcome is not None or (row.holder is not None and not self._is_current(row, epoch)):
            return False, effects
        self._stop_waiting(row)
        self._reclass(row, card)
        self._put_back(row, why, now_ns, effects)
        return True, effects

    def _reclass(self, row: RequestRow, card: RequestCard) -> None:
        if row.card.cls != card.cls:
            row.card = card.card() if isinstance(card, Request) else card
            row.cls = self._class(card.cls)
            row.cls.accept(row.card)

    def _put_back(self, row: RequestRow, why: str, now_ns: int, effects: Effects) -> None:
        instance = row.holder.instance if row.holder else None
        self._note(row, now_ns, "returned", why, instance)
        if row.cancel is not None:
            self._end(row, row.cancel, "", now_ns, effects)
            return
        self._unhold(row)
        self._wait(row)
        effects.wakeups.append(WAKE_RETURNED)

    def reap(self, now_ns: int, term: Term | None = None) -> tuple[Sequence[RequestId], Effects]:
        """Release the leases of holders that no longer live, oldest request first; return the ids."""
        self.check_term(term, now_ns)
        effects = Effects()
        # All rows of a holder share one object: thousands of rows, but few holders to look up.
        each = list(map(_HOLDER, self._held.values()))
        holders = dict(zip(map(id, each), each, strict=True))
        gone = {key for key, holder in holders.items() if holder and not self._alive(holder, now_ns)}
        dead = [row for row in self._held.values() if id(row.holder) in gone] if gone else []
        dead.sort(key=lambda row: row.key)
        for row in dead:
            self._put_back(row, HOLDER_LOST, now_ns, effects)
        return [row.card.id for row in dead], effects

    def reregister(
        self, card: RequestCard, holder: Holder, output: TokenIds, now_ns: int
    ) -> tuple[LeaseAnswer, Effects]:
        """Restore a running request that the store has forgotten, with its whole output log."""
        effects = Effects()
        row = self._rows.get(card.id)
        if row is None:
            row = self._add(card, now_ns)
        refusal = self._refusal(row, holder, now_ns)
        if refusal is not None:
            return refusal, effects
        self._stop_waiting(row)
        tail = output[len(row.log) :]
        if tail:
            self._extend(row, tail, now_ns, effects)
            self._announce(row, tail, effects)
        if row.cancel is not None:
            notice = CancelAsked(id=row.card.id, outcome=row.cancel)
            effects.notices.append((holder.instance, notice))
        return self._grant(row, holder, "restored", now_ns), effects
