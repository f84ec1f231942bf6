"""Controller in virtual time: production decisions at production intervals, with modelled planning time."""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Protocol, runtime_checkable

from qlm.controller.core.clustering import NOTHING_COUNTED
from qlm.controller.core.decide import NO_PLACEMENT, ControllerSettings, Decision, Planner, decide
from qlm.controller.core.estimating.state import NOTHING_LEARNED, EstimatorState
from qlm.controller.core.fleet import Fleet
from qlm.controller.core.pace import pause_s
from qlm.domain.group import RequestClass
from qlm.domain.ids import GroupId, InstanceId
from qlm.planner.policy.fallback import FailureKind
from qlm.simulator.cluster.event_queue import Rank
from qlm.simulator.cluster.observer import ClusterObserver
from qlm.simulator.cluster.services import SharedServices
from qlm.store.core import instances, leases, plans, requests

RECONCILE_NS: Final = 2_000_000_000
"""Interval of reconciliation, which also runs when an instance appears or disappears."""

PLANNING_S: Final = 0.001
"""Modelled time of a plan, of whatever size; like the next one measured for list scheduling on one core."""

PLANNING_PER_PAIR_S: Final = 0.3e-6
"""Modelled time per (group, instance)."""

PLANNING_PER_MOVE_S: Final = 0.7e-6
"""Modelled time per move of a planner that searches; docs/planner-measurements.md."""


@runtime_checkable
class SearchingPlanner(Protocol):
    """Planner that reports the number of moves of its last search."""

    moves: int


class SimulatedController:
    """Takes a snapshot, decides, and applies the decision after the modelled planning time.

    Attributes:
        plan_s: Real seconds of each decision.
        paused: A fault keeps the controller from planning.
        moves: Group moves of all applied decisions.
        planner_failures: Plans that failed, by kind; see `planner.policy.fallback`.
    """

    def __init__(
        self,
        services: SharedServices,
        instances: Sequence[InstanceId],
        *,
        fleet: Fleet,
        settings: ControllerSettings,
        planner: Planner,
        stopwatch_s: Callable[[], float],
        observer: ClusterObserver,
        on_applied: Callable[[Decision], None],
        estimator: EstimatorState = NOTHING_LEARNED,
    ) -> None:
        self.plan_s: list[float] = []
        self.paused = False
        self.estimator = estimator
        self.placement = NO_PLACEMENT
        self.clusters = NOTHING_COUNTED
        self._services = services
        self.moves = 0
        self.planner_failures: Counter[FailureKind] = Counter()
        self._event_queue = services.event_queue
        self._instances = instances
        self._fleet = fleet
        self._settings = settings
        self._planner = planner
        self._stopwatch_s = stopwatch_s
        self._observer = observer
        self._on_applied = on_applied
        self._numbers = itertools.count(1)
        self._version = 0
        self._next_ns = 0
        self._earliest_ns = 0
        self._planning = False
        self._alive: set[InstanceId] = set()
        self._reconcile_ns = 0

    def start(self) -> None:
        """Run the first cycle now, and subscribe to wake-ups."""
        self._services.on_wakeup = self._wake
        self._run_cycle_at(self._event_queue.now_ns)

    def _wake(self) -> None:
        """Run the next cycle as soon as the minimum interval allows."""
        at_ns = max(self._event_queue.now_ns + self._services.notice_ns, self._earliest_ns)
        if at_ns >= self._next_ns:
            return
        if self._planning:
            self._next_ns = at_ns
        else:
            self._run_cycle_at(at_ns)

    def _run_cycle_at(self, at_ns: int) -> None:
        self._next_ns = at_ns
        self._version += 1
        self._event_queue.schedule(at_ns, Rank.CONTROLLER, 0, self._run_cycle, self._version)

    def _run_cycle(self, version: int) -> None:
        if version != self._version:
            return
        now_ns = self._event_queue.now_ns
        quiet_ns = round(self._settings.quiet_s * 1e9)
        if self.paused or self._services.store_down:
            self._run_cycle_at(now_ns + quiet_ns)
            return
        state = self._services.state
        self._services.commit(requests.expire(state, now_ns, 1000))
        self._reconcile()
        began_s = self._stopwatch_s()
        decision = decide(
            plans.view(state, now_ns),
            now_ns=now_ns,
            fleet=self._fleet,
            settings=self._settings,
            planner=self._planner,
            new_id=self._new_id,
            estimator=self.estimator,
            placement=self.placement,
            clusters=self.clusters,
        )
        self.estimator, self.placement = decision.estimator, decision.placement
        self.planner_failures.update(failure.kind for failure in decision.failures)
        self.clusters = decision.clusters
        self.plan_s.append(self._stopwatch_s() - began_s)
        self._planning = True
        lasts_ns = self._planning_ns(decision)
        pause_ns = round(pause_s(lasts_ns / 1e9, self._settings.min_interval_s) * 1e9)
        self._next_ns = now_ns + lasts_ns + max(quiet_ns, pause_ns)
        self._earliest_ns = now_ns + lasts_ns + pause_ns
        self._event_queue.schedule(now_ns + lasts_ns, Rank.CONTROLLER, 0, self._apply, decision)

    def _planning_ns(self, decision: Decision) -> int:
        """Return the modelled duration of a decision, which does not depend on this machine."""
        pairs = len(decision.problem.groups) * len(decision.problem.instances)
        moves = self._planner.moves if isinstance(self._planner, SearchingPlanner) else 0
        return round((PLANNING_S + PLANNING_PER_PAIR_S * pairs + PLANNING_PER_MOVE_S * moves) * 1e9)

    def _apply(self, decision: Decision) -> None:
        self._planning = False
        if decision.changes and not self._services.store_down:
            self.moves += decision.moves.total()
            plans.check_changes(decision.changes)
            self._services.commit(
                plans.apply(self._services.state, decision.changes, self._event_queue.now_ns)
            )
        if not self._services.store_down:
            self._services.clusters = decision.clusters.clusters
        self._observer.on_decided(decision)
        self._on_applied(decision)
        self._run_cycle_at(max(self._next_ns, self._event_queue.now_ns))

    def _reconcile(self) -> None:
        """Release leases and messages of dead instances, as `controller.shell.reconciler` does."""
        services, now_ns = self._services, self._event_queue.now_ns
        alive = {status.id for status in instances.live_instances(services.state, now_ns)}
        if alive == self._alive and now_ns < self._reconcile_ns:
            return
        self._alive, self._reconcile_ns = alive, now_ns + RECONCILE_NS
        services.commit(leases.expire_leases(services.state, now_ns))
        if not services.broker_down:
            for instance in self._instances:
                if instance not in alive:
                    services.broker.empty_hold_queue(instance)

    def _new_id(self, cls: RequestClass) -> GroupId:
        return GroupId(f"g-{next(self._numbers):07d}")
