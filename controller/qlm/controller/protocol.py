"""What the controller decides, as a pure function: cluster view in, plan changes out.

Groups are formed, placed by the planner, and the virtual queues that differ are set. Instances that are
gone keep no groups: theirs are placed elsewhere.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from qlm.controller.balancing import EVEN, Loads
from qlm.controller.estimating.moment import Moment, moment
from qlm.controller.estimating.service_times import ServiceTimes
from qlm.controller.estimating.state import NOTHING_LEARNED, EstimatorState, learned
from qlm.controller.fleet import Fleet
from qlm.controller.grouping import NewGroupId, regroup
from qlm.controller.planning import make_problem
from qlm.domain.errors import InvalidValueError
from qlm.domain.fleet import InstanceStatus
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import GroupId, InstanceId
from qlm.domain.plan_change import PlanChange, SetQueue
from qlm.domain.view import ClassView, ClusterView
from qlm.planner.problem import Plan, Problem

Planner = Callable[[Problem], Plan]

BATCH_UNKNOWN: Final = 16.0
"""Average batch of a model that no live instance of a known kind serves: its groups wait for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """What an operator may change about the controller.

    Attributes:
        delta: Group size in average batches (QLM, section 8.3: 4).
        group_requests_max: Largest group whatever the batch size.
        linger_s: How long an empty group stays open for the next arrival.
        move_s: What moving a group must gain to be worth it, seconds.
        quiet_s: The loop runs this often even if nothing wakes it: silence (a dead instance) is an
            event, too.
        demotes: Agents put aside what cannot be in time any more, and plans count on it.
        stays: Agents whose model is in use start no other engine anew for what can wait, and plans count
            on it.
        balances: The waiting requests of a class are spread over instances (`controller.balancing`).
        lead_ttl_s: Of several controllers another one plans after the leader was silent for so long.
        min_interval_s: Shortest time between two runs, so that a burst of arrivals is planned once.
    """

    delta: float = 4.0
    group_requests_max: int = 1024
    linger_s: float = 30.0
    move_s: float = 1.0
    demotes: bool = False
    stays: bool = False
    balances: bool = True
    quiet_s: float = 0.5
    lead_ttl_s: float = 3.5
    min_interval_s: float = 0.01

    def __post_init__(self) -> None:
        for name in ("delta", "quiet_s", "lead_ttl_s"):
            if not getattr(self, name) > 0:
                raise InvalidValueError(f"controller.{name}", getattr(self, name), "a positive number")
        for name in ("linger_s", "move_s", "min_interval_s"):
            if not getattr(self, name) >= 0:
                raise InvalidValueError(f"controller.{name}", getattr(self, name), "a number, 0 or more")
        if self.group_requests_max < 1:
            raise InvalidValueError("controller.group_requests_max", self.group_requests_max, "at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to change, and the plan behind it.

    Attributes:
        changes: To be applied to the store, in order.
        problem: The planning problem that was solved.
        plan: The plan that was made of it.
        estimator: What has been learned, for the next decision.
        moment: What the problem was made of; None if it came from elsewhere.
    """

    changes: tuple[PlanChange, ...] = ()
    problem: Problem
    plan: Plan
    estimator: EstimatorState
    moment: Moment | None = None

    @property
    def moves(self) -> Counter[InstanceId]:
        """Groups that come to an instance from the queue of another one: load balancing by assignment."""
        before = {group: each.id for each in self.problem.instances for group in each.queue}
        return Counter(
            instance
            for instance, groups in self.plan.queues.items()
            for group in groups
            if before.get(group, instance) != instance
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grouped:
    """Classes with their groups as they will be, and where open groups without requests belong."""

    changes: list[PlanChange] = field(default_factory=list)
    groups: list[tuple[Group, ClassView]] = field(default_factory=list)
    homes: dict[GroupId, InstanceId] = field(default_factory=dict)


def decide(
    view: ClusterView,
    *,
    now_ns: int,
    fleet: Fleet,
    settings: ControllerSettings,
    planner: Planner,
    new_id: NewGroupId,
    estimator: EstimatorState = NOTHING_LEARNED,
) -> Decision:
    """Form groups, estimate, plan, and tell which virtual queues must change.

    Args:
        view: The cluster at one moment.
        now_ns: The present, nanoseconds since the epoch.
        fleet: Costs and speeds.
        settings: Operator settings.
        planner: The planning method.
        new_id: Names a new group.
        estimator: What was learned up to the last decision with the same fleet.
    """
    estimator = learned(estimator, view, now_ns=now_ns, fleet=fleet)
    grouped = _group_all(view, now_ns, settings, new_id, estimator.times, Loads(view, estimator.times, fleet))
    now = moment(view, grouped.groups, now_ns=now_ns, fleet=fleet, state=estimator)
    problem = make_problem(
        view,
        now,
        move_s=settings.move_s,
        homes=grouped.homes,
        demotes=settings.demotes,
        stays=settings.stays,
    )
    plan = planner(problem)
    changes = (*grouped.changes, *_queue_changes(view, grouped, plan))
    return Decision(changes=changes, problem=problem, plan=plan, estimator=estimator, moment=now)


def _group_all(
    view: ClusterView,
    now_ns: int,
    settings: ControllerSettings,
    new_id: NewGroupId,
    times: ServiceTimes,
    loads: Loads,
) -> _Grouped:
    grouped = _Grouped()
    for cls_view in view.classes:
        size_max = group_size(cls_view, view.instances, settings, times)
        spread = loads.spread(cls_view) if settings.balances else EVEN
        regrouped = regroup(
            cls_view,
            size_max=size_max,
            now_ns=now_ns,
            linger_s=settings.linger_s,
            new_id=new_id,
            spread=spread,
        )
        grouped.changes.extend(regrouped.changes)
        grouped.groups.extend((group, cls_view) for group in regrouped.groups)
        grouped.homes.update(regrouped.homes)
    return grouped


def group_size(
    view: ClassView, instances: tuple[InstanceStatus, ...], settings: ControllerSettings, times: ServiceTimes
) -> int:
    """Requests per group: delta times the average full batch of the instances that serve the model.

    The batch of an instance is bounded by its places, and by its KV cache at what the class's requests
    hold of it on average.
    """
    batches = [
        entry.times.batch
        for status in instances
        if view.cls.model in status.models
        and (entry := times.entries.get((view.cls, status.accelerator))) is not None
    ]
    mean_batch = sum(batches) / len(batches) if batches else BATCH_UNKNOWN
    return max(1, min(settings.group_requests_max, round(settings.delta * mean_batch)))


def _queue_changes(view: ClusterView, grouped: _Grouped, plan: Plan) -> list[PlanChange]:
    """Set the queues that differ; open groups without requests stand at the end of their home's queue."""
    present = {queue.instance: tuple(g.id for g in queue.groups) for queue in view.queues}
    alive = {group.id for group, _ in grouped.groups}
    planned = {group for queue in plan.queues.values() for group in queue}
    at_home: dict[InstanceId, list[GroupId]] = {}
    for group, home in grouped.homes.items():
        if group not in planned:
            at_home.setdefault(home, []).append(group)
    wanted: dict[InstanceId, tuple[GroupId, ...]] = {}
    for instance, queue in plan.queues.items():
        elsewhere = planned | grouped.homes.keys()
        lingering = [g for g in present.get(instance, ()) if g in alive and g not in elsewhere]
        wanted[instance] = (*queue, *lingering, *sorted(at_home.get(instance, ())))
    for instance in present:
        wanted.setdefault(instance, ())
    return [
        SetQueue(instance=instance, groups=queue)
        for instance, queue in wanted.items()
        if queue != present.get(instance, ())
    ]


def unknown_accelerators(view: ClusterView, fleet: Fleet) -> set[str]:
    """Kinds of accelerators that live instances have and the configuration here does not."""
    return {status.accelerator for status in view.instances} - fleet.kinds.keys()


def classes_without_instance(view: ClusterView) -> list[RequestClass]:
    """Classes with waiting requests that no live instance can serve."""
    served = {model for status in view.instances if not status.draining for model in status.models}
    return [c.cls for c in view.classes if c.queued and c.cls.model not in served]
