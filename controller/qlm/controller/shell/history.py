"""The history of what a controller has learned: recalled at its start, kept while it leads and at its end.

A standby takes over what the leader has learned that views do not show.
"""

import asyncio
import logging
from typing import Final

from qlm.controller.core.estimating.state import EstimatorState
from qlm.controller.core.history.codec import HISTORY
from qlm.controller.core.history.history import History, recalled, remembered, with_forecasts_of
from qlm.domain.errors import InvalidValueError, NotLeadingError
from qlm.domain.leadership import Term
from qlm.domain.ports.published import PublishedKind
from qlm.domain.ports.store import ControllerStore
from qlm.domain.shell.faults import FaultLog

log = logging.getLogger("qlm.controller")

KEEP_EVERY_NS: Final = 30_000_000_000
"""Time between two writes of the history."""

INLINE_CLASSES_MAX: Final = 20
"""A history of more classes is encoded in a thread, since a gateway may share the loop (0.1 ms each)."""


class HistoryKeeper:
    """Recalls, takes over and keeps the history of one controller; a failed write never stops planning."""

    def __init__(self, store: ControllerStore, faults: FaultLog) -> None:
        self._store = store
        self._faults = faults
        self._recalled = False
        self._known: bytes | None = None
        self._kept_ns: int | None = None

    async def recall(self, state: EstimatorState, now_ns: int) -> EstimatorState:
        """Return the state that begins with the stored history at the first call, later `state`.

        A history that cannot be read is reported once; it is replaced by the next one kept.

        Raises:
            StoreUnavailableError: Try again later.
        """
        if self._recalled:
            return state
        history = await self._read("learning begins anew")
        self._recalled, self._kept_ns = True, now_ns
        return state if history is None else recalled(history, now_ns)

    async def take_over(self, state: EstimatorState, now_ns: int) -> EstimatorState:
        """Return the state to begin a term with: as recalled, later with what the leader's forecasts taught.

        A history that this controller kept itself changes nothing.

        Raises:
            StoreUnavailableError: Try again later.
        """
        if not self._recalled:
            return await self.recall(state, now_ns)
        history = await self._read("its forecasts are not known")
        return state if history is None else with_forecasts_of(state, history, now_ns)

    async def _read(self, cost: str) -> History | None:
        """Return the stored history; None for none, for one that cannot be read, and for the known one."""
        data = await self._store.published(PublishedKind.HISTORY)
        known, self._known = self._known, data
        if data is None or data == known:
            return None
        try:
            return HISTORY.decode(data)
        except InvalidValueError as error:
            log.warning("the stored history is not used, %s: %s", cost, error)
            return None

    async def keep(self, state: EstimatorState, now_ns: int, term: Term | None) -> None:
        """Write the history if it is time.

        Raises:
            NotLeadingError: Another controller leads.
        """
        # abs: after the clock was set back, the history must not stay old for that time.
        if self._kept_ns is not None and abs(now_ns - self._kept_ns) < KEEP_EVERY_NS:
            return
        await self.keep_now(state, now_ns, term)

    async def keep_now(self, state: EstimatorState, now_ns: int, term: Term | None) -> None:
        """Write the history, once one was recalled: an empty one must not replace it.

        Raises:
            NotLeadingError: Another controller leads.
        """
        if not self._recalled:
            return
        self._kept_ns = now_ns
        history = remembered(state, now_ns)
        try:
            large = len(history.classes) > INLINE_CLASSES_MAX
            data = await asyncio.to_thread(HISTORY.encode, history) if large else HISTORY.encode(history)
            await self._store.publish(PublishedKind.HISTORY, data, term)
            self._known = data
        except NotLeadingError:
            raise
        except Exception as error:
            self._faults.note(log, error, "history not kept; planning continues")
