"""The controller's latest forecast, with the requests accepted here since; and its token clusters."""

import asyncio
import logging
from collections import Counter, deque
from typing import Final

from qlm.domain.errors import InvalidValueError
from qlm.domain.formats.clusters import CLUSTERS, NO_CLUSTERS, Clusters
from qlm.domain.ids import ModelId
from qlm.domain.ports.published import PublishedKind
from qlm.domain.ports.store import GatewayStore
from qlm.gateway.core.forecast import CurrentForecast, current_forecast
from qlm.planner.admission_signal import SIGNAL, AdmissionSignal

_log = logging.getLogger(__name__)

INLINE_BYTES_MAX: Final = 16_384
"""A larger forecast is parsed on a thread: one of 40 classes has 45 000 bytes and takes 2.5 ms."""

COUNTED_MAX: Final = 100_000
"""Accepted requests counted until the next forecast; beyond it the oldest are forgotten."""


class ForecastWatch:
    """The latest forecast. Without a readable one, requests are admitted without a forecast."""

    def __init__(self, store: GatewayStore) -> None:
        """Begin without a forecast; `refresh` reads one."""
        self._store = store
        self._data: bytes | None = None
        self._signal: AdmissionSignal | None = None
        self._arrivals: deque[tuple[int, ModelId]] = deque()
        self._arrived: Counter[ModelId] = Counter()
        self._unreadable = False

    def current(self, now_ns: int) -> CurrentForecast | None:
        """Return the forecast as of now; None if there is none, or only an old one."""
        return current_forecast(self._signal, self._arrived, now_ns)

    def count_accepted(self, model: ModelId, now_ns: int) -> None:
        """Count a request accepted here, until a forecast includes it."""
        if self._signal is None:
            return
        if len(self._arrivals) >= COUNTED_MAX:
            self._forget_oldest()
        self._arrivals.append((now_ns, model))
        self._arrived[model] += 1

    async def refresh(self) -> None:
        """Read the latest forecast.

        Raises:
            StoreUnavailableError: The store is unavailable.
        """
        data = await self._store.published(PublishedKind.SIGNAL)
        if data == self._data:
            return
        self._data = data
        large = data is not None and len(data) > INLINE_BYTES_MAX
        try:
            self._signal = await asyncio.to_thread(_parse, data) if large else _parse(data)
            self._unreadable = False
        except InvalidValueError as error:
            self._signal = None
            if not self._unreadable:
                _log.warning("cannot parse the forecast; admission goes on without it: %s", error)
            self._unreadable = True
        made_ns = 0 if self._signal is None else self._signal.at_ms * 1_000_000
        while self._arrivals and (self._signal is None or self._arrivals[0][0] < made_ns):
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, model = self._arrivals.popleft()
        self._arrived[model] -= 1


class ClusterWatch:
    """The latest token clusters; they stay while the store is away, and while none can be read.

    Attributes:
        latest: The clusters.
    """

    def __init__(self, store: GatewayStore) -> None:
        """Begin without clusters; `refresh` reads them."""
        self.latest: Clusters = NO_CLUSTERS
        self._store = store
        self._data: bytes | None = None

    async def refresh(self) -> None:
        """Read the latest clusters.

        Raises:
            StoreUnavailableError: The store is unavailable.
        """
        data = await self._store.published(PublishedKind.CLUSTERS)
        if data is None or data == self._data:
            return
        self._data = data
        try:
            self.latest = CLUSTERS.decode(data)
        except InvalidValueError as error:
            _log.warning("cannot read the token clusters; the former ones stay: %s", error)


def _parse(data: bytes | None) -> AdmissionSignal | None:
    return None if data is None else SIGNAL.decode(data)
