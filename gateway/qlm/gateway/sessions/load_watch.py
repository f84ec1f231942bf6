"""Periodic reads of the cluster's load, for admission and to detect a store that was emptied."""

import asyncio
import logging
from typing import Final

from qlm.domain.errors import StoreUnavailableError, UndecodableDataError
from qlm.domain.ids import ModelId
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.store import GatewayStore
from qlm.gateway.core.admission import Load, accepted, observe
from qlm.gateway.core.forecast import CurrentForecast
from qlm.gateway.sessions.forecast_watch import ForecastWatch
from qlm.gateway.sessions.hub import Hub

_log = logging.getLogger(__name__)

REBUILD_NS: Final = 60_000_000_000
"""Time after which a store that was emptied knows every request again."""

REFUSAL_FADES_NS: Final = 5_000_000_000
"""Time for which a gateway is not ready after the queue refused a request."""


class LoadWatch:
    """The latest observation of the cluster."""

    def __init__(self, store: GatewayStore, clock: Clock, hub: Hub, interval_s: float) -> None:
        """Begin without an observation; `run` makes them."""
        self._store = store
        self._clock = clock
        self._hub = hub
        self._interval_s = interval_s
        self._load = Load()
        self._forecast = ForecastWatch(store)
        self._incarnation: int | None = None
        self._rebuilding_until_ns = 0
        self._refusal: tuple[int, str] | None = None

    @property
    def load(self) -> Load:
        """The latest observation, with the number of requests accepted here since."""
        return self._load

    @property
    def incarnation(self) -> int | None:
        """The store's identity as of the latest observation; None before the first."""
        return self._incarnation

    def forecast(self) -> CurrentForecast | None:
        """Return the latest forecast as of now; None if there is no recent one."""
        return self._forecast.current(self._clock.now_ns())

    async def rebuilding(self) -> bool:
        """Return whether the store may not know every request.

        That holds until the queue has been read into the store, which the store reports itself; and for
        `REBUILD_NS` after this gateway saw the store unavailable or emptied.

        Raises:
            StoreUnavailableError: The store is unavailable.
        """
        await self.check_incarnation()
        return self._clock.now_ns() < self._rebuilding_until_ns or not await self._store.indexed()

    def count_refused(self, now_ns: int, why: str) -> None:
        """Note that the queue refused a request."""
        self._refusal = (now_ns, why)

    def recent_refusal(self, now_ns: int) -> str | None:
        """Return why the queue refused a request within `REFUSAL_FADES_NS`; None if it accepts them.

        The reason expires by itself: a gateway that is not ready gets no request that could prove it well.
        """
        if self._refusal is None or now_ns - self._refusal[0] > REFUSAL_FADES_NS:
            return None
        return self._refusal[1]

    def expect_unknown(self) -> None:
        """Note that for a while the store may not know every accepted request."""
        self._rebuilding_until_ns = self._clock.now_ns() + REBUILD_NS

    async def check_incarnation(self) -> None:
        """Detect at once whether the store was emptied.

        Raises:
            StoreUnavailableError: The store is unavailable.
        """
        incarnation = await self._store.incarnation()
        if self._incarnation is not None and incarnation != self._incarnation:
            _log.warning("the shared state was emptied; subscribing again to every open request")
            self.expect_unknown()
            self._hub.resync()
        self._incarnation = incarnation

    def count_accepted(self, model: ModelId) -> None:
        """Count a request accepted here, until the next observation and the next forecast include it."""
        self._load = accepted(self._load)
        self._forecast.count_accepted(model, self._clock.now_ns())
        self._refusal = None

    async def run(self) -> None:
        """Observe the cluster until cancelled."""
        while True:
            try:
                await self._observe()
            except StoreUnavailableError as error:
                # Requests accepted meanwhile are indexed when their queue is read again.
                self.expect_unknown()
                _log.warning("cannot read the cluster's load: %s", error)
            except UndecodableDataError as error:
                _log.warning("cannot read the cluster's load: %s", error)
            await asyncio.sleep(self._interval_s)

    async def _observe(self) -> None:
        await self.check_incarnation()
        view = await self._store.view()
        self._load = observe(self._load, view, self._clock.now_ns())
        await self._forecast.refresh()
