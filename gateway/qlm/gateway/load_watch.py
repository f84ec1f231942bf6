"""Looks at the cluster now and then: for admission, and to notice a store that was emptied."""

import asyncio
import logging
from typing import Final

from qlm.domain.errors import StoreUnavailableError
from qlm.domain.ids import ModelId
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.store import Store
from qlm.gateway.admission import Load, accepted, observe
from qlm.gateway.forecast import Outlook
from qlm.gateway.forecast_watch import ForecastWatch
from qlm.gateway.hub import Hub

_log = logging.getLogger(__name__)

REBUILD_NS: Final = 60_000_000_000
"""For how long after it was emptied a store may not yet know every request."""

REFUSAL_FADES_NS: Final = 5_000_000_000
"""A request that the queue did not take makes the gateway not ready for this long."""


class LoadWatch:
    """The latest look at the cluster."""

    def __init__(self, store: Store, clock: Clock, hub: Hub, interval_s: float) -> None:
        """Begin without a look; `run` takes them."""
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
        """The latest look, with what was accepted here since."""
        return self._load

    @property
    def incarnation(self) -> int | None:
        """The store's identity as of the latest look; None before the first."""
        return self._incarnation

    def outlook(self) -> Outlook | None:
        """The latest forecast as of now; None if there is none that is recent."""
        return self._forecast.outlook(self._clock.now_ns())

    async def rebuilding(self) -> bool:
        """Whether the store may not know every request.

        So it is until the queue was read into it, which the store itself tells; and, for a while, if this
        gateway has seen it away or emptied.

        Raises:
            StoreUnavailableError: It cannot be asked.
        """
        await self.check_incarnation()
        return self._clock.now_ns() < self._rebuilding_until_ns or not await self._store.indexed()

    def count_refused(self, now_ns: int, why: str) -> None:
        """Note that the queue did not take a request."""
        self._refusal = (now_ns, why)

    def trouble(self, now_ns: int) -> str | None:
        """Why the queue refused a request in the last seconds; None if it did not, or takes them again.

        It fades by itself: a gateway that is not ready is sent no request that could show it is well.
        """
        if self._refusal is None or now_ns - self._refusal[0] > REFUSAL_FADES_NS:
            return None
        return self._refusal[1]

    def expect_unknown(self) -> None:
        """Note that the store may not know every accepted request for a while."""
        self._rebuilding_until_ns = self._clock.now_ns() + REBUILD_NS

    async def check_incarnation(self) -> None:
        """Notice at once if the store was emptied.

        Raises:
            StoreUnavailableError: It cannot be asked.
        """
        incarnation = await self._store.incarnation()
        if self._incarnation is not None and incarnation != self._incarnation:
            _log.warning("the shared state was emptied; every open request is watched anew")
            self.expect_unknown()
            self._hub.resync()
        self._incarnation = incarnation

    def count_accepted(self, model: ModelId) -> None:
        """Count a request accepted here, until the next look and the next forecast count it."""
        self._load = accepted(self._load)
        self._forecast.count_accepted(model, self._clock.now_ns())
        self._refusal = None

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                await self._look()
            except StoreUnavailableError as error:
                # Requests accepted meanwhile are indexed when their queue is read again.
                self.expect_unknown()
                _log.warning("the cluster's load is not known at the moment: %s", error)
            await asyncio.sleep(self._interval_s)

    async def _look(self) -> None:
        await self.check_incarnation()
        view = await self._store.view()
        self._load = observe(self._load, view, self._clock.now_ns())
        await self._forecast.look()
