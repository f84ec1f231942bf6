"""Periodic reads of the cluster's load, for admission and to detect a store that was emptied."""

import asyncio
import contextlib
import logging
from typing import Final

from qlm.domain.errors import StoreUnavailableError
from qlm.domain.formats.clusters import Clusters
from qlm.domain.ids import ModelId, RequestId
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.store import GatewayStore
from qlm.domain.request import RequestMetadata, RequestRecord, RequestState
from qlm.domain.shell.faults import FaultLog
from qlm.domain.shell.loop_lateness import LoopLateness
from qlm.domain.view import ClusterView
from qlm.gateway.core.admission import Load, observe
from qlm.gateway.core.admitted import Admitted
from qlm.gateway.core.forecast import CurrentForecast
from qlm.gateway.sessions.hub import Hub
from qlm.gateway.sessions.load.forecast_watch import ClusterWatch, ForecastWatch
from qlm.gateway.sessions.load.look_pauses import LookPauses

_log = logging.getLogger(__name__)

LATENESS_PERIOD_S: Final = 0.25
"""Time between two readings of the loop's lateness; the mean is over eight, so no single pause counts."""

REBUILD_NS: Final = 60_000_000_000
"""Time after which a store that was emptied knows every request again."""

UNWATCHED_MAX_NS: Final = 5_000_000_000
"""Time without a look after which a gateway may have missed that the store was away, or refused to index."""

LOOK_WAIT_S: Final = 1.0
"""Time for which a new request waits for an observation."""

LOOKS_MISSED: Final = 2
"""Intervals without a look that count as such, if they are longer."""

REFUSAL_FADES_NS: Final = 5_000_000_000
"""Time for which a gateway is not ready after the queue refused a request."""


class LoadWatch:
    """The latest observation of the cluster.

    Attributes:
        view: The cluster as of that observation; None before the first.
    """

    def __init__(
        self,
        *,
        store: GatewayStore,
        clock: Clock,
        hub: Hub,
        faults: FaultLog,
        interval_s: float,
        away_max_s: float = 10.0,
        admitted: Admitted | None = None,
    ) -> None:
        """Begin without an observation; `run` makes them.

        Args:
            store: The store.
            clock: Source of time.
            hub: The open subscriptions.
            faults: Failures of the process.
            interval_s: Time between two observations, seconds.
            away_max_s: Time for which the store may be away before clients receive 503, seconds.
            admitted: Requests accepted here, which the hub takes out once they are served; None for new ones.
        """
        self._store = store
        self._clock = clock
        self._hub = hub
        self._faults = faults
        self._interval_s = interval_s
        self._away_max_ns = round(away_max_s * 1e9)
        self._away_since_ns: int | None = None
        self._away_why = ""
        self._lateness = LoopLateness(LATENESS_PERIOD_S)
        self._load = Load()
        self._admitted = Admitted() if admitted is None else admitted
        self._look_wanted = asyncio.Event()
        self._pauses = LookPauses(interval_s)
        self._next_look_ended = asyncio.Event()
        self.view: ClusterView | None = None
        self._forecast = ForecastWatch(store)
        self._clusters = ClusterWatch(store)
        self._incarnation: int | None = None
        self._rebuilding_until_ns = 0
        self._watched_ns: int | None = None
        self._refusal: tuple[int, str] | None = None

    @property
    def load(self) -> Load:
        """The latest observation, with the requests admitted here since."""
        return self._admitted.added_to(self._load)

    @property
    def observed(self) -> Load:
        """The latest observation, without them."""
        return self._load

    @property
    def incarnation(self) -> int | None:
        """The store's identity as of the latest observation; None before the first."""
        return self._incarnation

    @property
    def late_s(self) -> float:
        """Mean lateness of this process's timers in the last seconds."""
        return self._lateness.mean_s

    def forecast(self) -> CurrentForecast | None:
        """Return the latest forecast as of now; None if there is no recent one."""
        return self._forecast.current(self._clock.now_ns())

    def clusters(self) -> Clusters:
        """Return the token clusters for new requests."""
        return self._clusters.latest

    async def rebuilding(self) -> bool:
        """Return whether the store may not know every request.

        That holds until the queue has been read into the store, which the store reports itself; and for
        `REBUILD_NS` after this gateway saw the store unavailable or emptied, or had not looked for a while:
        another one may have failed to index what it had accepted before this one was started or went on.

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
        now_ns = self._clock.now_ns()
        # Before its first look it missed all since the store was made, at its incarnation.
        since_ns = incarnation if self._watched_ns is None else self._watched_ns
        if now_ns - since_ns > max(UNWATCHED_MAX_NS, LOOKS_MISSED * self._interval_s * 1e9):
            self.expect_unknown()
        self._watched_ns = now_ns

    def reserve(self, metadata: RequestMetadata) -> None:
        """Count a request until an observation includes it, or `settle` says that it was not queued."""
        self._admitted.reserve(metadata)

    def settle(self, id: RequestId, *, queued: bool) -> None:
        """Note whether a counted request was queued; again, it changes nothing."""
        self._admitted.settle(id, queued=queued)

    def note_state(self, record: RequestRecord) -> None:
        """Note a record of the store: a request that is served, or has been, waits no longer."""
        if record.state in (RequestState.RUNNING, RequestState.ENDED):
            self._admitted.left(record.metadata.id)

    async def look_again(self) -> None:
        """Wait for a look at the queue that begins after now, for `LOOK_WAIT_S` at most.

        All that wait at a time share one look, and looks keep their least pause. Further ones follow at
        growing intervals: a request that finds the queue full of what was seen is refused without a look.
        """
        ended = self._next_look_ended
        self._pauses.asked()
        self._look_wanted.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_WAIT_S):
                await ended.wait()

    def count_accepted(self, model: ModelId) -> None:
        """Count a request accepted here, until the next forecast includes it."""
        self._forecast.count_accepted(model, self._clock.now_ns())
        self._refusal = None

    @property
    def unread_why(self) -> str | None:
        """Why the latest observation failed, while the store is away."""
        return None if self._away_since_ns is None else self._away_why

    def store_away(self) -> str | None:
        """Return why the store is away, if it has been for longer than clients shall wait for it.

        Until then requests are accepted: the queue has them, and a restarted store is filled from it.
        """
        return None if self._away_ns < max(self._away_max_ns, 1) else self._away_why

    @property
    def away_s(self) -> float:
        """Time for which the store has been away, as far as this gateway knows."""
        return self._away_ns / 1e9

    @property
    def _away_ns(self) -> int:
        return 0 if self._away_since_ns is None else self._clock.now_ns() - self._away_since_ns

    async def run(self) -> None:
        """Observe the cluster, and the lateness of the loop, until cancelled."""
        self._lateness.watch(on=True)
        try:
            await self._observe_always()
        finally:
            self._lateness.watch(on=False)

    async def _observe_always(self) -> None:
        while True:
            began_ns = self._clock.now_ns()
            ended, self._next_look_ended = self._next_look_ended, asyncio.Event()
            try:
                await self._observe()
                self._away_since_ns = None
            except StoreUnavailableError as error:
                # Requests accepted meanwhile are indexed when their queue is read again.
                self.expect_unknown()
                self._note_away(began_ns, str(error))
                self._faults.note(_log, error, "cannot read the cluster's load")
            except Exception as error:
                self._faults.note(_log, error, "cannot read the cluster's load")
            ended.set()
            await self._pause()

    async def _pause(self) -> None:
        least_s, pause_s = self._pauses.least_s, self._pauses.next_s()
        await asyncio.sleep(least_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s - least_s):
                await self._look_wanted.wait()
        self._look_wanted.clear()

    def _note_away(self, began_ns: int, why: str) -> None:
        self._away_why = why
        if self._away_since_ns is None:
            self._away_since_ns = began_ns
        if self.store_away() is not None:
            self._hub.end_plain(why)

    async def _observe(self) -> None:
        await self._store.probe()
        await self.check_incarnation()
        self._admitted.begin_look()
        self.view = view = await self._store.view()
        self._load = observe(self._load, view, self._clock.now_ns())
        self._admitted.end_look()
        await self._forecast.refresh()
        await self._clusters.refresh()
