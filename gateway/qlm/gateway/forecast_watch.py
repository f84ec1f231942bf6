"""Looks at the controller's forecast now and then, and counts what was accepted since it was made."""

import asyncio
import logging
from collections import Counter, deque
from typing import Final

import orjson

from qlm.domain.errors import InvalidValueError
from qlm.domain.ids import ModelId
from qlm.domain.ports.store import Store
from qlm.gateway.forecast import Outlook, outlook
from qlm.planner.admission_signal import AdmissionSignal, signal_from_plain

_log = logging.getLogger(__name__)

INLINE_BYTES_MAX: Final = 16_384
"""A larger forecast is read on a thread: 40 classes have 45 000 bytes, and take 2.5 ms."""

COUNTED_MAX: Final = 100_000
"""Accepted requests that are counted until the next forecast; of more, the latest."""


class ForecastWatch:
    """The latest forecast; whatever is wrong with it, requests are taken in without it."""

    def __init__(self, store: Store) -> None:
        """Begin without a forecast; `look` takes one."""
        self._store = store
        self._data: bytes | None = None
        self._signal: AdmissionSignal | None = None
        self._arrivals: deque[tuple[int, ModelId]] = deque()
        self._came: Counter[ModelId] = Counter()
        self._unread = False

    def outlook(self, now_ns: int) -> Outlook | None:
        """What is forecast, as of now; None if nothing is, or nothing was for long."""
        return outlook(self._signal, self._came, now_ns)

    def count_accepted(self, model: ModelId, now_ns: int) -> None:
        """Count a request accepted here, until a forecast is made that counts it."""
        if self._signal is None:
            return
        if len(self._arrivals) >= COUNTED_MAX:
            self._forget_oldest()
        self._arrivals.append((now_ns, model))
        self._came[model] += 1

    async def look(self) -> None:
        """Get the latest forecast.

        Raises:
            StoreUnavailableError: The store cannot be asked.
        """
        data = await self._store.kept_signal()
        if data == self._data:
            return
        self._data = data
        large = data is not None and len(data) > INLINE_BYTES_MAX
        try:
            self._signal = await asyncio.to_thread(_read, data) if large else _read(data)
            self._unread = False
        except (InvalidValueError, orjson.JSONDecodeError) as error:
            self._signal = None
            if not self._unread:
                _log.warning("the forecast for admission is not used, it cannot be read: %s", error)
            self._unread = True
        made_ns = 0 if self._signal is None else self._signal.at_ms * 1_000_000
        while self._arrivals and (self._signal is None or self._arrivals[0][0] < made_ns):
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, model = self._arrivals.popleft()
        self._came[model] -= 1


def _read(data: bytes | None) -> AdmissionSignal | None:
    return None if data is None else signal_from_plain(orjson.loads(data))
