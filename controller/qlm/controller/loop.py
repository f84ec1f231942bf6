"""The controller's loop: read the world once, decide with a pure function, apply the difference."""

import asyncio
import contextlib
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from qlm.controller.estimating.state import NOTHING_LEARNED, learned
from qlm.controller.fleet import Fleet
from qlm.controller.grouping import NewGroupId
from qlm.controller.leading import Leading
from qlm.controller.plan_keeper import PlanKeeper
from qlm.controller.protocol import (
    ControllerSettings,
    Decision,
    Planner,
    classes_without_instance,
    decide,
    unknown_accelerators,
)
from qlm.controller.upkeep import Upkeep
from qlm.domain.errors import BrokerUnavailableError, NotLeadingError, StoreUnavailableError
from qlm.domain.ids import ControllerId
from qlm.domain.leadership import WAKE_LEADER
from qlm.domain.ports.broker import Broker
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.store import Store
from qlm.domain.view import ClusterView

if TYPE_CHECKING:  # a simulation needs no metrics, nor their package
    from qlm.controller.metrics import ControllerMetrics

log = logging.getLogger("qlm.controller")

INLINE_GROUPS_MAX: Final = 100
"""More groups than this are planned on a thread: a gateway may share the loop (1000 groups take 0.35 s)."""


WATCH_NS: Final = 2_000_000_000
"""Who stands by looks at the cluster this often: speeds are learned over 5 s or more."""


class ControllerLoop:
    """One controller, which plans while it leads. `run` works until cancelled; `run_once` is one turn of it.

    While another one leads, it asks for the lead every `quiet_s`, and looks at the cluster now and then, so
    that it has learned what there is to know when it takes over: at most `lead_ttl_s` and `quiet_s` after
    the leader died, at once after it stopped.
    """

    def __init__(
        self,
        *,
        name: ControllerId,
        store: Store,
        broker: Broker,
        clock: Clock,
        fleet: Fleet,
        settings: ControllerSettings,
        planner: Planner,
        new_group_id: NewGroupId,
        metrics: "ControllerMetrics | None" = None,
    ) -> None:
        self._store = store
        self._upkeep = Upkeep(broker=broker, store=store, clock=clock)
        self._keeper = PlanKeeper(store)
        self._leading = Leading(store, name, settings.lead_ttl_s)
        self._clock = clock
        self._fleet = fleet
        self._settings = settings
        self._planner = planner
        self._new_group_id = new_group_id
        self._metrics = metrics
        self._estimator = NOTHING_LEARNED
        self._watched_ns = 0
        self._woken = asyncio.Event()
        self._troubles: set[str] = set()

    async def run(self) -> None:
        """Plan whenever something happens, and every `quiet_s`; at the end give the lead back."""
        helpers = [asyncio.create_task(self._listen()), asyncio.create_task(self._leading.keep())]
        try:
            while True:
                self._woken.clear()
                try:
                    await self._turn()
                except (StoreUnavailableError, BrokerUnavailableError) as error:
                    log.warning("planning skipped: %s", error)
                    if self._metrics is not None:
                        self._metrics.skipped()
                    await asyncio.sleep(self._settings.quiet_s)
                await asyncio.sleep(self._settings.min_interval_s)
                await self._rest()
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            await self._leading.give_back()

    async def run_once(self) -> Decision:
        """Lead, observe, repair, decide, apply.

        Raises:
            NotLeadingError: Another one leads, perhaps since this turn began; what it has planned stands.
            StoreUnavailableError, BrokerUnavailableError: Try again later.
        """
        term = await self._leading.term()
        await self._store.expire(self._clock.now_ns())
        view = await self._store.view()
        if await self._upkeep.run(view, term):
            view = await self._store.view()
        now_ns = self._clock.now_ns()
        decide_now = partial(
            decide,
            view,
            now_ns=now_ns,
            fleet=self._fleet,
            settings=self._settings,
            planner=self._planner,
            new_id=self._new_group_id,
            estimator=self._estimator,
        )
        groups, began_s = sum(len(each.groups) for each in view.classes), time.perf_counter()
        decision = await asyncio.to_thread(decide_now) if groups > INLINE_GROUPS_MAX else decide_now()
        took_s = time.perf_counter() - began_s
        self._estimator = decision.estimator
        if decision.changes:
            await self._store.apply(decision.changes, term)
            if decision.moves:
                log.info("groups moved: %s", ", ".join(f"{n} to {i}" for i, n in decision.moves.items()))
        await self._keeper.keep(decision, now_ns, term)
        self._warn(view)
        if self._metrics is not None:
            self._metrics.planned(view, decision, took_s)
        return decision

    async def _turn(self) -> None:
        try:
            await self.run_once()
        except NotLeadingError:
            if self._metrics is not None:
                self._metrics.stood_by()
            if self._leading.lost():
                self._woken.set()  # nobody may have taken it: ask at once
            await self._watch()

    async def _watch(self) -> None:
        """Learn from what happens under another leader."""
        now_ns = self._clock.now_ns()
        if abs(now_ns - self._watched_ns) >= WATCH_NS:  # also after a clock was set back
            self._watched_ns = now_ns
            view = await self._store.view()
            self._estimator = learned(self._estimator, view, now_ns=now_ns, fleet=self._fleet)

    async def _listen(self) -> None:
        while True:
            try:
                async for reason in self._store.wakeups():
                    if self._leading.leads or reason == WAKE_LEADER:
                        self._woken.set()
            except StoreUnavailableError as error:
                log.warning("wakeups wait: %s", error)
            await asyncio.sleep(self._settings.quiet_s)

    async def _rest(self) -> None:
        """Wait for a wakeup, no longer than `quiet_s`.

        Not by `asyncio.wait_for`: before Python 3.12 it swallows a cancellation that comes together with the
        wakeup, and the loop would go on for ever.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.quiet_s):
                await self._woken.wait()

    def _warn(self, view: ClusterView) -> None:
        """Say what cannot be planned, once."""
        troubles = {
            f"no live instance serves {cls.model}: its requests wait"
            for cls in classes_without_instance(view)
        }
        troubles |= {
            f"instances with the accelerator {kind!r} get no work: the configuration here has none"
            for kind in unknown_accelerators(view, self._fleet)
        }
        for trouble in sorted(troubles - self._troubles):
            log.warning("%s", trouble)
        self._troubles = troubles
