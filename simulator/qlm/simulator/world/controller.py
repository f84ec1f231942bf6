"""The controller in virtual time: production's decision at production's pace, planning time charged."""

import itertools
from collections.abc import Callable, Sequence
from typing import Final, Protocol, runtime_checkable

from qlm.controller.estimating.state import NOTHING_LEARNED
from qlm.controller.fleet import Fleet
from qlm.controller.protocol import ControllerSettings, Decision, Planner, decide
from qlm.domain.group import RequestClass
from qlm.domain.ids import GroupId, InstanceId
from qlm.simulator.world.shared import SharedParts
from qlm.simulator.world.timeline import Rank
from qlm.simulator.world.watching import Watcher

UPKEEP_NS: Final = 2_000_000_000
"""Dead holders are looked for this often, and whenever an instance comes or goes."""

PLANNING_S: Final = 0.001
"""Charged for a plan, whatever its size; with the next one, measured for list scheduling on one core."""

PLANNING_PER_PAIR_S: Final = 0.3e-6
"""Charged per (group, instance), seconds."""

PLANNING_PER_MOVE_S: Final = 0.7e-6
"""Charged per move of a planner that searches; docs/planner-measurements.md."""


@runtime_checkable
class Searches(Protocol):
    """A planner that says how many moves its last plan took."""

    moves: int


class SimulatedController:
    """Looks, decides, and applies the decision when the time that planning takes has passed.

    Attributes:
        plan_s: Real seconds that each decision took.
        paused: Nobody plans at present.
        estimator: What has been learned.
    """

    def __init__(
        self,
        parts: SharedParts,
        instances: Sequence[InstanceId],
        *,
        fleet: Fleet,
        settings: ControllerSettings,
        planner: Planner,
        stopwatch_s: Callable[[], float],
        watcher: Watcher,
    ) -> None:
        self.plan_s: list[float] = []
        self.paused = False
        self.estimator = NOTHING_LEARNED
        self._parts = parts
        self.moves = 0
        self._timeline = parts.timeline
        self._instances = instances
        self._fleet = fleet
        self._settings = settings
        self._planner = planner
        self._stopwatch_s = stopwatch_s
        self._watcher = watcher
        self._numbers = itertools.count(1)
        self._version = 0
        self._next_ns = 0
        self._earliest_ns = 0
        self._planning = False
        self._alive: set[InstanceId] = set()
        self._upkeep_ns = 0

    def start(self) -> None:
        """Take the first turn now, and listen."""
        self._parts.on_wakeup = self._wake
        self._turn_at(self._timeline.now_ns)

    def _wake(self) -> None:
        """Take the next turn as soon as the pace allows."""
        at_ns = max(self._timeline.now_ns + self._parts.notice_ns, self._earliest_ns)
        if at_ns >= self._next_ns:
            return
        if self._planning:
            self._next_ns = at_ns
        else:
            self._turn_at(at_ns)

    def _turn_at(self, at_ns: int) -> None:
        self._next_ns = at_ns
        self._version += 1
        self._timeline.at(at_ns, Rank.CONTROLLER, 0, self._turn, self._version)

    def _turn(self, version: int) -> None:
        if version != self._version:
            return
        now_ns = self._timeline.now_ns
        quiet_ns = round(self._settings.quiet_s * 1e9)
        if self.paused or self._parts.store_down:
            self._turn_at(now_ns + quiet_ns)
            return
        store = self._parts.store
        self._parts.commit(store.expire(now_ns, 1000))
        self._upkeep()
        began_s = self._stopwatch_s()
        decision = decide(
            store.view(now_ns),
            now_ns=now_ns,
            fleet=self._fleet,
            settings=self._settings,
            planner=self._planner,
            new_id=self._new_id,
            estimator=self.estimator,
        )
        self.estimator = decision.estimator
        self.plan_s.append(self._stopwatch_s() - began_s)
        self._planning = True
        lasts_ns = self._planning_ns(decision)
        self._next_ns = now_ns + lasts_ns + quiet_ns
        self._earliest_ns = now_ns + lasts_ns + round(self._settings.min_interval_s * 1e9)
        self._timeline.at(now_ns + lasts_ns, Rank.CONTROLLER, 0, self._apply, decision)

    def _planning_ns(self, decision: Decision) -> int:
        """How long the decision would take, whatever this machine took."""
        pairs = len(decision.problem.groups) * len(decision.problem.instances)
        moves = self._planner.moves if isinstance(self._planner, Searches) else 0
        return round((PLANNING_S + PLANNING_PER_PAIR_S * pairs + PLANNING_PER_MOVE_S * moves) * 1e9)

    def _apply(self, decision: Decision) -> None:
        self._planning = False
        if decision.changes and not self._parts.store_down:
            self.moves += decision.moves.total()
            self._parts.commit(self._parts.store.apply(decision.changes, self._timeline.now_ns))
        self._watcher.decided(decision)
        self._turn_at(max(self._next_ns, self._timeline.now_ns))

    def _upkeep(self) -> None:
        """Release what dead holders held, as `controller.upkeep` does."""
        parts, now_ns = self._parts, self._timeline.now_ns
        alive = {status.id for status in parts.store.live_instances(now_ns)}
        if alive == self._alive and now_ns < self._upkeep_ns:
            return
        self._alive, self._upkeep_ns = alive, now_ns + UPKEEP_NS
        parts.commit(parts.store.reap(now_ns))
        if not parts.broker_down:
            for instance in self._instances:
                if instance not in alive:
                    parts.queue.empty_hold_queue(instance)

    def _new_id(self, cls: RequestClass) -> GroupId:
        return GroupId(f"g-{next(self._numbers):07d}")
