"""The controller's loop: read the world once, decide with a pure function, apply the difference."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from qlm.controller.grouping import NewGroupId
from qlm.controller.protocol import (
    ControllerSettings,
    Decision,
    Fleet,
    Planner,
    classes_without_instance,
    decide,
)
from qlm.controller.reindex import drain_hold_queues
from qlm.domain.errors import BrokerUnavailableError, StoreUnavailableError
from qlm.domain.group import RequestClass
from qlm.domain.lease import Holder
from qlm.domain.ports.broker import Broker
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.store import Store

log = logging.getLogger("qlm.controller")

QUIET_S: Final = 0.5
"""The loop runs this often even if nothing wakes it: silence (a dead instance) is an event, too."""

BURIAL_NS: Final = 2_000_000_000
"""What dead instances held is looked for this often, and whenever an instance comes or goes."""

MIN_INTERVAL_S: Final = 0.01
"""Shortest time between two runs, so that a burst of arrivals is planned once."""


@dataclass(slots=True)
class LoopStats:
    """What the loop has done so far.

    Attributes:
        runs: Decisions made.
        plan_s: Seconds the last decision took.
        changes: Plan changes applied.
        expired: Requests ended because their deadline had passed.
    """

    runs: int = 0
    plan_s: float = 0.0
    changes: int = 0
    expired: int = 0


class ControllerLoop:
    """One controller. `run` works until cancelled; `run_once` is one turn of it."""

    def __init__(
        self,
        *,
        store: Store,
        broker: Broker,
        clock: Clock,
        fleet: Fleet,
        settings: ControllerSettings,
        planner: Planner,
        new_group_id: NewGroupId,
        on_turn: Callable[[Decision], None] | None = None,
    ) -> None:
        self._store = store
        self._broker = broker
        self._clock = clock
        self._fleet = fleet
        self._settings = settings
        self._planner = planner
        self._new_group_id = new_group_id
        self._on_turn = on_turn
        self._woken = asyncio.Event()
        self._alive: set[Holder] = set()
        self._next_burial_ns = 0
        self._unserved: set[RequestClass] = set()
        self.stats = LoopStats()

    async def run(self) -> None:
        """Plan whenever something happens, and every QUIET_S."""
        listener = asyncio.create_task(self._listen())
        try:
            while True:
                self._woken.clear()
                try:
                    await self.run_once()
                except (StoreUnavailableError, BrokerUnavailableError) as error:
                    log.warning("planning skipped: %s", error)
                    await asyncio.sleep(QUIET_S)
                await asyncio.sleep(MIN_INTERVAL_S)
                await self._rest()
        finally:
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)

    async def run_once(self) -> Decision:
        """Observe, decide, apply."""
        expired = await self._store.expire(self._clock.now_ns())
        view = await self._store.view()
        if await self._bury_the_dead({status.holder for status in view.instances}):
            view = await self._store.view()
        started_s = time.perf_counter()
        decision = decide(
            view,
            now_ns=self._clock.now_ns(),
            fleet=self._fleet,
            settings=self._settings,
            planner=self._planner,
            new_id=self._new_group_id,
        )
        self.stats.plan_s = time.perf_counter() - started_s
        if decision.changes:
            await self._store.apply(decision.changes)
        self.stats.runs += 1
        self.stats.changes += len(decision.changes)
        self.stats.expired += len(expired)
        self._warn_unserved(set(classes_without_instance(view)))
        if self._on_turn is not None:
            self._on_turn(decision)
        return decision

    async def _bury_the_dead(self, alive: set[Holder]) -> bool:
        """Give back what dead instances held: their leases at once, their hold queues with them."""
        now_ns = self._clock.now_ns()
        if alive == self._alive and now_ns < self._next_burial_ns:
            return False
        self._next_burial_ns = now_ns + BURIAL_NS
        self._alive = alive
        released = await self._store.reap()
        moved = await drain_hold_queues(
            self._broker, self._store, alive={holder.instance for holder in alive}
        )
        if released or moved:
            log.warning("lost instances: %d requests wait again, %d messages moved", len(released), moved)
        return bool(released or moved)

    async def _listen(self) -> None:
        async for _ in self._store.wakeups():
            self._woken.set()

    async def _rest(self) -> None:
        try:
            await asyncio.wait_for(self._woken.wait(), QUIET_S)
        except TimeoutError:
            return

    def _warn_unserved(self, unserved: set[RequestClass]) -> None:
        for cls in unserved - self._unserved:
            log.warning("no live instance serves %s: its requests wait", cls.model)
        self._unserved = unserved
