"""The controller's decision as a pure function: cluster view in, plan changes out.

It forms groups, has the planner place them, and sets the virtual queues that differ. Groups of lost instances
are placed elsewhere.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from qlm.agents.core.scheduling.visits.backlog import Patience
from qlm.controller.core.balancing import BALANCED, LoadBalance
from qlm.controller.core.clustering import NOTHING_COUNTED, ClusterState, update_clusters, with_strands
from qlm.controller.core.estimating.service_times import ServiceTimes
from qlm.controller.core.estimating.snapshot import Snapshot, take_snapshot
from qlm.controller.core.estimating.state import NOTHING_LEARNED, EstimatorState, learn
from qlm.controller.core.expected.made import with_forecasts
from qlm.controller.core.fleet import Fleet
from qlm.controller.core.forecasting import forecast_changes
from qlm.controller.core.grouping import NewGroupId, regroup
from qlm.controller.core.placement.homes import home_changes
from qlm.controller.core.placement.placing import restricted, update_placement
from qlm.controller.core.problem import make_problem
from qlm.controller.core.strand_homes import strand_homes
from qlm.domain.errors import InvalidValueError
from qlm.domain.fleet import InstanceStatus
from qlm.domain.formats.clusters import Thresholds, check_thresholds
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.domain.plan_change import PlanChange, SetQueue
from qlm.domain.view import ClassView, ClusterView
from qlm.planner.placement.policy import PlacementState
from qlm.planner.policy.fallback import FailureKind, PlannerFailure, plan_or_fall_back
from qlm.planner.problem import PROMISE_S, Plan, Problem

Planner = Callable[[Problem], Plan]

Placer = Callable[[PlacementState, ClusterView, EstimatorState, Fleet, int], PlacementState]
"""Returns the placement of models after a view; see `update_placement`."""

NO_PLACEMENT: Final = PlacementState()
"""Every instance may serve all of its models."""

BATCH_UNKNOWN: Final = 16.0
"""Assumed batch of a model without a live instance of a known kind: its groups wait for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Settings of the controller.

    Attributes:
        delta: Group size in average batches (QLM, section 8.3: 4).
        group_requests_max: Largest group, whatever the batch size.
        linger_s: Time that an empty group stays open for the next arrival.
        move_s: Least gain for which a group is moved to another instance, seconds.
        quiet_s: Longest time between two runs without a wakeup: a dead instance sends none.
        demotes: Agents demote requests that can no longer meet their deadline; plans rely on it.
        swap_hysteresis: Agents delay cold starts for deferrable work while their model is in use; plans
            rely on it.
        places: Give each instance its models for the next minutes (`planner.placement`).
        balances: Distribute the waiting requests of a class over instances (`controller.core.balancing`).
        clusters: Divide classes by the length of their prompts where it is of several kinds
            (`controller.core.clustering`).
        cluster_tokens: Thresholds of models whose classes are divided at these prompt lengths, in any case.
        strands: Divide tasks into strands, which have homes (`controller.core.strand_homes`).
        promise_s: Price of one request short of a promise (`Problem.promise_s`).
        patience: Patience of agents that serve in visits, which forecasts foresee; None if they follow their
            queue.
        lead_ttl_s: Leadership lapses after this time without a renewal.
        min_interval_s: Shortest time between two runs, so that a burst of arrivals is planned once.
        plan_time_max_s: Longest time of the planner in production; after that the plan is one by earliest
            deadline first. A controller that plans on its event loop must still renew its leadership.
    """

    delta: float = 4.0
    group_requests_max: int = 1024
    linger_s: float = 30.0
    move_s: float = 1.0
    demotes: bool = False
    swap_hysteresis: bool = False
    places: bool = False
    balances: bool = True
    clusters: bool = False
    cluster_tokens: Mapping[ModelId, Thresholds] = field(default_factory=dict)
    strands: bool = False
    promise_s: float = PROMISE_S["priced"]
    patience: Patience | None = None
    quiet_s: float = 0.5
    lead_ttl_s: float = 3.5
    min_interval_s: float = 0.01
    plan_time_max_s: float = 2.5

    def __post_init__(self) -> None:
        for name in ("delta", "quiet_s", "lead_ttl_s", "plan_time_max_s"):
            if not getattr(self, name) > 0:
                raise InvalidValueError(f"controller.{name}", getattr(self, name), "a positive number")
        for name in ("linger_s", "move_s", "min_interval_s", "promise_s"):
            if not getattr(self, name) >= 0:
                raise InvalidValueError(f"controller.{name}", getattr(self, name), "a number, 0 or more")
        if self.group_requests_max < 1:
            raise InvalidValueError("controller.group_requests_max", self.group_requests_max, "at least 1")
        for model, thresholds in self.cluster_tokens.items():
            check_thresholds(f"controller.cluster_tokens[{model}]", thresholds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Plan changes, and the plan behind them.

    Attributes:
        changes: Changes to apply to the store, in order.
        problem: The planning problem that was solved.
        plan: The plan that solves it.
        estimator: State of the estimator, for the next decision.
        placement: Placement of models, for the next decision.
        clusters: Division of classes by prompt length, for gateways and for the next decision.
        snapshot: Origin of the problem; None if the problem has another one.
        failures: Failures of the planner and of the placement, which cost this plan only.
    """

    changes: tuple[PlanChange, ...] = ()
    problem: Problem
    plan: Plan
    estimator: EstimatorState
    placement: PlacementState = NO_PLACEMENT
    clusters: ClusterState = NOTHING_COUNTED
    snapshot: Snapshot | None = None
    failures: tuple[PlannerFailure, ...] = ()

    @property
    def moves(self) -> Counter[InstanceId]:
        """Number of groups that each instance gets from the queues of others (load balancing)."""
        before = {group: each.id for each in self.problem.instances for group in each.queue}
        return Counter(
            instance
            for instance, groups in self.plan.queues.items()
            for group in groups
            if before.get(group, instance) != instance
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grouped:
    """Classes with their groups after regrouping, and the instances of open groups without requests."""

    changes: list[PlanChange] = field(default_factory=list)
    groups: list[tuple[Group, ClassView]] = field(default_factory=list)
    placements: dict[GroupId, InstanceId] = field(default_factory=dict)


def decide(
    view: ClusterView,
    *,
    now_ns: int,
    fleet: Fleet,
    settings: ControllerSettings,
    planner: Planner,
    new_id: NewGroupId,
    estimator: EstimatorState = NOTHING_LEARNED,
    placement: PlacementState = NO_PLACEMENT,
    placer: Placer = update_placement,
    clusters: ClusterState = NOTHING_COUNTED,
) -> Decision:
    """Form groups, estimate, plan, and return the virtual queues that must change.

    Args:
        view: The cluster.
        now_ns: The present, nanoseconds since the epoch.
        fleet: Costs and speeds.
        settings: Operator settings.
        planner: The planning method.
        new_id: Returns the id of a new group.
        estimator: State after the last decision with the same fleet.
        placement: Placement after the last decision.
        placer: Decides about the placement.
        clusters: Division of classes after the last decision.
    """
    estimator = learn(estimator, view, now_ns=now_ns, fleet=fleet)
    clusters = _divided(clusters, view, estimator, settings, now_ns)
    failures: list[PlannerFailure] = []
    if settings.places:
        try:
            placement = placer(placement, view, estimator, fleet, now_ns)
        except Exception as error:  # the last placement stands
            failures.append(PlannerFailure(kind=FailureKind.PLACEMENT, error=error))
        view = restricted(view, placement, fleet, now_ns)
    homes = strand_homes(view)
    loads = LoadBalance(view, estimator.times, fleet, homes) if settings.balances else None
    grouped = _group_all(view, now_ns, settings, new_id, estimator.times, loads)
    now = take_snapshot(view, grouped.groups, now_ns=now_ns, fleet=fleet, state=estimator)
    problem = make_problem(
        view,
        now,
        move_s=settings.move_s,
        placements=grouped.placements,
        demotes=settings.demotes,
        swap_hysteresis=settings.swap_hysteresis,
        promise_s=settings.promise_s,
        homes=homes,
    )
    plan, failure = plan_or_fall_back(planner, problem)
    for_agents: tuple[PlanChange, ...] = (
        *forecast_changes(view, now),
        *home_changes(view, placement.homes if settings.places else {}, estimator, now_ns),
    )
    return Decision(
        changes=(*grouped.changes, *_queue_changes(view, grouped, plan), *for_agents),
        problem=problem,
        plan=plan,
        estimator=with_forecasts(estimator, view, now, problem, plan, settings.patience),
        placement=placement,
        clusters=clusters,
        snapshot=now,
        failures=(*failures, failure) if failure else tuple(failures),
    )


def _divided(
    clusters: ClusterState,
    view: ClusterView,
    estimator: EstimatorState,
    settings: ControllerSettings,
    now_ns: int,
) -> ClusterState:
    """Return the division of classes and of tasks after a view."""
    clusters = update_clusters(
        clusters,
        view,
        estimator,
        now_ns=now_ns,
        automatic=settings.clusters,
        fixed=settings.cluster_tokens,
    )
    return with_strands(clusters, view, now_ns) if settings.strands else clusters


def _group_all(
    view: ClusterView,
    now_ns: int,
    settings: ControllerSettings,
    new_id: NewGroupId,
    times: ServiceTimes,
    loads: LoadBalance | None,
) -> _Grouped:
    grouped = _Grouped()
    for cls_view in view.classes:
        size_max = group_size(cls_view, view.instances, settings, times)
        balance = BALANCED if loads is None else loads.target(cls_view)
        regrouped = regroup(
            cls_view,
            size_max=size_max,
            now_ns=now_ns,
            linger_s=settings.linger_s,
            new_id=new_id,
            balance=balance,
        )
        grouped.changes.extend(regrouped.changes)
        grouped.groups.extend((group, cls_view) for group in regrouped.groups)
        grouped.placements.update(regrouped.placements)
    return grouped


def group_size(
    view: ClassView, instances: tuple[InstanceStatus, ...], settings: ControllerSettings, times: ServiceTimes
) -> int:
    """Return the group size: delta times the average full batch of the instances that serve the model.

    A full batch is bounded by batch slots, and by KV cache at the mean occupancy of the class.
    """
    batches = [
        entry.times.batch
        for status in instances
        if view.cls.model in status.models
        and (entry := times.entries.get((view.cls, status.accelerator))) is not None
    ]
    mean_batch = sum(batches) / len(batches) if batches else BATCH_UNKNOWN
    return max(1, min(settings.group_requests_max, round(settings.delta * mean_batch)))


def exceeds_groups(view: ClusterView, settings: ControllerSettings, times: ServiceTimes, limit: int) -> bool:
    """Return whether a plan of a view has more groups than a limit, those counted that it has to form.

    Args:
        view: The cluster.
        settings: Operator settings.
        times: Service times of the last decision.
        limit: Number of groups; classes beyond it are not looked at.
    """
    groups = 0
    for each in view.classes:
        size = group_size(each, view.instances, settings, times) if each.queued else 1
        groups += max(len(each.groups), math.ceil(each.queued / size))
        if groups > limit:
            return True
    return False


def _queue_changes(view: ClusterView, grouped: _Grouped, plan: Plan) -> list[PlanChange]:
    """Set the queues that differ; empty open groups stand at the end of their instance's queue."""
    present = {queue.instance: tuple(g.id for g in queue.groups) for queue in view.queues}
    alive = {group.id for group, _ in grouped.groups}
    planned = {group for queue in plan.queues.values() for group in queue}
    empty_groups: dict[InstanceId, list[GroupId]] = {}
    for group, instance in grouped.placements.items():
        if group not in planned:
            empty_groups.setdefault(instance, []).append(group)
    wanted: dict[InstanceId, tuple[GroupId, ...]] = {}
    for instance, queue in plan.queues.items():
        elsewhere = planned | grouped.placements.keys()
        lingering = [g for g in present.get(instance, ()) if g in alive and g not in elsewhere]
        wanted[instance] = (*queue, *lingering, *sorted(empty_groups.get(instance, ())))
    for instance in present:
        wanted.setdefault(instance, ())
    return [
        SetQueue(instance=instance, groups=queue)
        for instance, queue in wanted.items()
        if queue != present.get(instance, ())
    ]


def unknown_accelerators(view: ClusterView, fleet: Fleet) -> set[str]:
    """Return the kinds of accelerators of live instances that are not configured here."""
    return {status.accelerator for status in view.instances} - fleet.kinds.keys()


def classes_without_instance(view: ClusterView) -> list[RequestClass]:
    """Return the classes with waiting requests that no live instance can serve."""
    served = {model for status in view.instances if not status.draining for model in status.models}
    return [c.cls for c in view.classes if c.queued and c.cls.model not in served]
