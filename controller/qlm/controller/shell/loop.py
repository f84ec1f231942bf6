"""The controller's loop: read the cluster view, decide with a pure function, apply the changes."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from qlm.controller.core.clustering import NOTHING_COUNTED, with_published
from qlm.controller.core.decide import (
    NO_PLACEMENT,
    ControllerSettings,
    Decision,
    Planner,
    classes_without_instance,
    decide,
    exceeds_groups,
    unknown_accelerators,
)
from qlm.controller.core.estimating.state import NOTHING_LEARNED, learn
from qlm.controller.core.fleet import Fleet
from qlm.controller.core.grouping import NewGroupId
from qlm.controller.core.pace import pause_s
from qlm.controller.core.placement.placing import is_due
from qlm.controller.shell.history import HistoryKeeper
from qlm.controller.shell.leadership import LeadershipLoop
from qlm.controller.shell.plan_report import PlanReporter
from qlm.controller.shell.reconciler import Reconciler
from qlm.controller.shell.store_watch import StoreWatch
from qlm.controller.shell.time_limited_planner import TimeLimitedPlanner
from qlm.controller.shell.timed_placer import TimedPlacer
from qlm.domain.errors import NotLeadingError, StoreUnavailableError
from qlm.domain.ids import ControllerId, ModelId
from qlm.domain.leadership import WAKE_LEADER, Term
from qlm.domain.ports.broker import Broker
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.published import PublishedKind
from qlm.domain.ports.store import WAKE_JOINED, ControllerStore
from qlm.domain.shell.faults import FaultLog
from qlm.domain.shell.tasks import end_tasks
from qlm.domain.view import ClusterView
from qlm.planner.policy.fallback import FailureKind

if TYPE_CHECKING:  # a simulation needs no metrics, nor their package
    from qlm.controller.shell.metrics import ControllerMetrics

log = logging.getLogger("qlm.controller")

INLINE_GROUPS_MAX: Final = 10
"""Larger plans are computed in a thread, since the tokens of a gateway may wait for the loop: a group takes
0.35 ms (1000 take 0.35 s)."""

INLINE_PAIRS_MAX: Final = 32
"""A placement of more pairs of a model and an instance is computed in a thread, too: 8 models on 4 instances
take 0.02 s, on 8 instances 0.1 s, 70 models 2 s."""

_COSTS: Final = (
    "this plan is by earliest deadline first, since the planner failed",
    "the last placement of models stands, since the next one failed",
)
"""What a failure costs: of the planner, of the placement."""

JOINED_S: Final = 0.2
"""Time from a request that joins a planned group to the next plan. A plan for each took a fifth of the
processor time of a short request (0.9 of 4.9 ms at 100 requests per second)."""

UNSERVED_NS: Final = 10_000_000_000
"""Time without a live instance after which a model is named in the log: at a start agents join last."""

WATCH_NS: Final = 2_000_000_000
"""Least time between two views of a standby: speeds are learned over 5 s or more."""


class ControllerLoop:
    """One controller, which plans while it leads. `run` runs until cancelled; `run_once` is one turn.

    A standby asks for the leadership every `quiet_s` and keeps learning from views. It takes over at most
    `lead_ttl_s` plus `quiet_s` after the leader died, and at once after it resigned.

    Attributes:
        decided_s: Processor time of the last decision without its placement, in its own threads.
        unserved_since_ns: Models that are waited for without a live instance, and since when.
    """

    def __init__(
        self,
        *,
        name: ControllerId,
        store: ControllerStore,
        broker: Broker,
        clock: Clock,
        fleet: Fleet,
        settings: ControllerSettings,
        planner: Planner,
        new_group_id: NewGroupId,
        metrics: "ControllerMetrics | None" = None,
        faults: FaultLog | None = None,
        processor_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._faults = faults = faults or FaultLog()
        self._processor_s = processor_s
        self._store = store
        self._reconciler = Reconciler(broker=broker, store=store, clock=clock)
        self._reporter = PlanReporter(store, faults, settings.patience)
        self._history = HistoryKeeper(store, faults)
        lapsed = (lambda: None) if metrics is None else metrics.stood_by
        self._leadership = LeadershipLoop(store, name, settings.lead_ttl_s, faults, lapsed)
        warned = (lambda _: None) if metrics is None else metrics.store_warned
        self._store_watch = StoreWatch(store, faults, warned)
        self._clock = clock
        self._fleet = fleet
        self._settings = settings
        self._planner = TimeLimitedPlanner(planner, settings.plan_time_max_s, processor_s)
        self._placer = TimedPlacer(processor_s)
        self._new_group_id = new_group_id
        self._metrics = metrics
        self._estimator = NOTHING_LEARNED
        self._placement = NO_PLACEMENT
        self._clusters = NOTHING_COUNTED
        self._took_over: Term | None = None
        self._watched_ns = 0
        self._woken = asyncio.Event()
        self._woken_soon: asyncio.TimerHandle | None = None
        self.decided_s = 0.0
        self._warned: set[str] = set()
        self.unserved_since_ns: dict[ModelId, int] = {}

    async def run(self) -> None:
        """Plan at every wakeup and at least every `quiet_s`; resign at the end."""
        helpers = [asyncio.create_task(self._listen()), asyncio.create_task(self._leadership.renew())]
        try:
            while True:
                self._woken.clear()
                self.decided_s = 0.0
                try:
                    await self._turn()
                except Exception as error:
                    self._faults.note(log, error, "planning skipped")
                    if self._metrics is not None:
                        self._metrics.skipped()
                    await asyncio.sleep(self._settings.quiet_s)
                await asyncio.sleep(pause_s(self.decided_s, self._settings.min_interval_s))
                await self._wait()
        finally:
            if self._woken_soon is not None:
                self._woken_soon.cancel()
            await end_tasks(helpers)
            await self._keep_history()
            await self._leadership.resign()

    async def run_once(self) -> Decision:
        """Run one turn as leader: observe, reconcile, decide, apply.

        Raises:
            NotLeadingError: Another controller leads, perhaps since this turn began; its plan is valid.
            UnavailableError: Try again later.
        """
        term = await self._leadership.term()
        if self._took_over not in (None, term):  # its own leadership lapsed: perhaps the machine slept
            self._reconciler.give_time()
        await self._store_watch.look(self._clock.now_ns())
        await self._store.expire(self._clock.now_ns())
        view = await self._store.view()
        if await self._reconciler.run(view, term):
            view = await self._store.view()
        await self._take_over(term)
        now_ns = self._clock.now_ns()
        decide_now = partial(
            decide,
            view,
            now_ns=now_ns,
            fleet=self._fleet,
            settings=self._settings,
            planner=self._planner,
            placer=self._placer,
            new_id=self._new_group_id,
            estimator=self._estimator,
            placement=self._placement,
            clusters=self._clusters,
        )
        large = exceeds_groups(view, self._settings, self._estimator.times, INLINE_GROUPS_MAX)
        large |= self._settings.places and self._places_many(len(view.instances), now_ns)
        timed, began_s = partial(self._timed, decide_now), time.perf_counter()
        decision = await asyncio.to_thread(timed) if large else timed()
        took_s = time.perf_counter() - began_s
        self._estimator, self._placement = decision.estimator, decision.placement
        self._clusters = decision.clusters
        if decision.changes:
            await self._store.apply(decision.changes, term)
            if decision.moves:
                log.info("groups moved: %s", ", ".join(f"{n} to {i}" for i, n in decision.moves.items()))
        await self._reporter.publish(decision, now_ns, term)
        for failure in decision.failures:
            self._faults.note(log, failure.error, _COSTS[failure.kind is FailureKind.PLACEMENT])
        await self._history.keep(self._estimator, now_ns, term)
        self._warn(view, now_ns)
        if self._metrics is not None:
            self._metrics.planned(view, decision, took_s)
        return decision

    def _timed(self, decide_now: Callable[[], Decision]) -> Decision:
        began_s = self._planning_s()
        try:
            return decide_now()
        finally:
            self.decided_s = self._planning_s() - began_s

    def _planning_s(self) -> float:
        return self._processor_s() + self._planner.took_s - self._placer.took_s

    def _places_many(self, instances: int, now_ns: int) -> bool:
        """Return True if a placement of many models is due."""
        models = {cls.model for cls in self._estimator.arrivals}
        return len(models) * instances > INLINE_PAIRS_MAX and is_due(self._placement, now_ns)

    async def _take_over(self, term: Term) -> None:
        """Go on from the published clusters and history at the beginning of a term."""
        if term != self._took_over:
            published = self._reporter.read_clusters(await self._store.published(PublishedKind.CLUSTERS))
            if published is not None:
                self._clusters = with_published(self._clusters, published)
            self._estimator = await self._history.take_over(self._estimator, self._clock.now_ns())
            self._took_over = term

    async def _turn(self) -> None:
        try:
            await self.run_once()
        except NotLeadingError:
            if self._metrics is not None:
                self._metrics.stood_by()
            if self._leadership.lost():
                self._woken.set()  # the leadership may be free: ask at once
            await self._watch()
        except StoreUnavailableError:
            self._reconciler.give_time()
            raise

    async def _watch(self) -> None:
        """Learn from the cluster while another controller leads."""
        now_ns = self._clock.now_ns()
        if abs(now_ns - self._watched_ns) >= WATCH_NS:  # also after a clock was set back
            self._watched_ns = now_ns
            self._estimator = await self._history.recall(self._estimator, now_ns)
            view = await self._store.view()
            self._estimator = learn(self._estimator, view, now_ns=now_ns, fleet=self._fleet)

    async def _keep_history(self) -> None:
        """Keep what was learned before another controller leads."""
        if not self._leadership.is_leader:
            return
        try:
            term = await self._leadership.term()
            await self._history.keep_now(self._estimator, self._clock.now_ns(), term)
        except Exception as error:
            self._faults.note(log, error, "history not kept at the end")

    async def _listen(self) -> None:
        while True:
            try:
                async for reason in self._store.wakeups():
                    if reason == WAKE_JOINED:
                        self._wake_soon()
                    elif self._leadership.is_leader or reason == WAKE_LEADER:
                        self._woken.set()
            except Exception as error:
                self._faults.note(log, error, "no wakeups from the store")
            await asyncio.sleep(self._settings.quiet_s)

    def _wake_soon(self) -> None:
        """Plan once for all requests that join groups within `JOINED_S`: agents have them already."""
        if self._woken_soon is None and self._leadership.is_leader:
            self._woken_soon = asyncio.get_running_loop().call_later(JOINED_S, self._wake)

    def _wake(self) -> None:
        self._woken_soon = None
        self._woken.set()

    async def _wait(self) -> None:
        """Wait for a wakeup, at most `quiet_s`."""
        # `asyncio.wait_for` before Python 3.12 swallows a cancellation that arrives together with the wakeup,
        # and the loop would never end.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.quiet_s):
                await self._woken.wait()

    def _warn(self, view: ClusterView, now_ns: int) -> None:
        """Log once what cannot be planned."""
        unserved = {cls.model for cls in classes_without_instance(view)}
        since_ns = {model: self.unserved_since_ns.get(model, now_ns) for model in unserved}
        self.unserved_since_ns = since_ns
        warnings = {
            f"no live instance serves {model}: its requests wait"
            for model in unserved
            if now_ns - since_ns[model] >= UNSERVED_NS
        }
        warnings |= {
            f"instances with the accelerator {kind!r} get no work: this configuration does not have that kind"
            for kind in unknown_accelerators(view, self._fleet)
        }
        for warning in sorted(warnings - self._warned):
            log.warning("%s", warning)
        self._warned = warnings
