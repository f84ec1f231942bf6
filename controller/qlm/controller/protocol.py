"""What the controller decides, as a pure function: cluster view in, plan changes out.

Groups are formed, placed by the planner, and the virtual queues that differ are set. Instances that are
gone keep no groups: theirs are placed elsewhere.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from qlm.controller.grouping import NewGroupId, regroup
from qlm.domain.fleet import EngineState, InstanceStatus
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.domain.plan_change import PlanChange, SetQueue
from qlm.domain.view import ClassView, ClusterView
from qlm.planner.problem import GroupTime, Instance, Kind, Plan, PlannedGroup, Problem
from qlm.rct_estimator.group_time import busy_time, drain_time, tail_time
from qlm.rct_estimator.normal import NOTHING, Normal
from qlm.rct_estimator.profile import Profile

Planner = Callable[[Problem], Plan]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """What an operator may change about the controller.

    Attributes:
        delta: Group size in average batches (QLM, section 8.3: 4).
        group_requests_max: Largest group whatever the batch size.
        linger_s: How long an empty group stays open for the next arrival.
        move_s: What moving a group must gain to be worth it, seconds.
    """

    delta: float = 4.0
    group_requests_max: int = 1024
    linger_s: float = 30.0
    move_s: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What the controller knows about models and kinds of accelerators besides what agents say.

    Attributes:
        kinds: Cost of models per kind of accelerator.
        profiles: How fast each model runs on each kind of accelerator.
    """

    kinds: Mapping[str, Kind]
    profiles: Mapping[tuple[ModelId, str], Profile]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to change, and the plan behind it.

    Attributes:
        changes: To be applied to the store, in order.
        problem: The planning problem that was solved.
        plan: The plan that was made of it.
    """

    changes: tuple[PlanChange, ...] = ()
    problem: Problem
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grouped:
    """Classes with their groups as they will be."""

    changes: list[PlanChange] = field(default_factory=list)
    groups: list[tuple[Group, ClassView]] = field(default_factory=list)


def decide(
    view: ClusterView,
    *,
    now_ns: int,
    fleet: Fleet,
    settings: ControllerSettings,
    planner: Planner,
    new_id: NewGroupId,
) -> Decision:
    """Form groups, plan, and tell which virtual queues must change.

    Args:
        view: The cluster at one moment.
        now_ns: The present, nanoseconds since the epoch.
        fleet: Costs and speeds.
        settings: Operator settings.
        planner: The planning method.
        new_id: Names a new group.
    """
    grouped = _group_all(view, now_ns, settings, new_id)
    problem = make_problem(view, grouped.groups, now_ns=now_ns, fleet=fleet, move_s=settings.move_s)
    plan = planner(problem)
    return Decision(
        changes=(*grouped.changes, *_queue_changes(view, grouped.groups, plan)), problem=problem, plan=plan
    )


def _group_all(view: ClusterView, now_ns: int, settings: ControllerSettings, new_id: NewGroupId) -> _Grouped:
    grouped = _Grouped()
    for cls_view in view.classes:
        size_max = group_size(cls_view, view.instances, settings)
        changes, groups = regroup(
            cls_view, size_max=size_max, now_ns=now_ns, linger_s=settings.linger_s, new_id=new_id
        )
        grouped.changes.extend(changes)
        grouped.groups.extend((group, cls_view) for group in groups)
    return grouped


def group_size(view: ClassView, instances: tuple[InstanceStatus, ...], settings: ControllerSettings) -> int:
    """Requests per group: delta times the average batch of the instances that serve the model.

    The batch of an instance is bounded by its places and by the KV cache its requests take.
    """
    tokens = view.mean_prompt_tokens + (view.mean_output_tokens or view.mean_max_tokens)
    batches = [
        min(i.capacity.seqs_max, i.capacity.kv_tokens / max(1.0, tokens))
        for i in instances
        if i.capacity is not None and view.cls.model in i.models
    ]
    mean_batch = sum(batches) / len(batches) if batches else 16.0
    return max(1, min(settings.group_requests_max, round(settings.delta * mean_batch)))


def make_problem(
    view: ClusterView,
    groups: list[tuple[Group, ClassView]],
    *,
    now_ns: int,
    fleet: Fleet,
    move_s: float,
) -> Problem:
    """Write the planning problem for groups with waiting requests, on the clock `now_ns` as 0 s."""
    queues = {queue.instance: tuple(g.id for g in queue.groups) for queue in view.queues}
    usable = [s for s in view.instances if not s.draining and s.accelerator in fleet.kinds]
    variants = {status.id: _variant(status) for status in usable}
    kinds: dict[str, Kind] = {}
    for variant in variants.values():
        kinds[variant.name] = _kind(fleet.kinds[variant.accelerator], variant)
    return Problem(
        now_s=0.0,
        move_s=move_s,
        kinds=kinds,
        instances=tuple(
            _instance(status, variants[status.id].name, queues.get(status.id, ()), fleet) for status in usable
        ),
        groups=tuple(
            _planned(group, cls, now_ns, set(variants.values()), fleet)
            for group, cls in groups
            if group.remaining > 0
        ),
    )


@dataclass(frozen=True, slots=True)
class _Variant:
    """A kind of accelerator with the models that an instance of it can serve at present."""

    accelerator: str
    models: tuple[ModelId, ...]

    @property
    def name(self) -> str:
        """Key of the kind in the problem: instances that differ in their models are of different kinds."""
        return f"{self.accelerator}[{','.join(self.models)}]"


def _variant(status: InstanceStatus) -> _Variant:
    """Leave out models whose engine has failed: the agent tries again, others serve meanwhile."""
    failed = {model for model, state in status.engines if state is EngineState.FAILED}
    return _Variant(status.accelerator, tuple(sorted(m for m in status.models if m not in failed)))


def _kind(kind: Kind, variant: _Variant) -> Kind:
    models = {model: kind.models[model] for model in variant.models if model in kind.models}
    return Kind(host_memory_bytes=kind.host_memory_bytes, models=models)


def _instance(status: InstanceStatus, kind: str, queue: tuple[GroupId, ...], fleet: Fleet) -> Instance:
    engines = dict(status.engines)
    profile = fleet.profiles.get((status.active_model, status.accelerator)) if status.active_model else None
    return Instance(
        id=status.id,
        kind=kind,
        loaded_model=status.active_model,
        warm_models=tuple(model for model, state in engines.items() if state is EngineState.ASLEEP),
        busy=busy_time(profile, running=status.running, parked=status.parked) if profile else NOTHING,
        queue=queue,
    )


def _planned(
    group: Group, cls: ClassView, now_ns: int, variants: set[_Variant], fleet: Fleet
) -> PlannedGroup:
    times = {}
    for variant in variants:
        profile = fleet.profiles.get((group.cls.model, variant.accelerator))
        if profile is not None and group.cls.model in variant.models:
            times[variant.name] = GroupTime(
                drain=drain_time(profile, group.remaining, cls.mean_prompt_tokens, _output(cls)),
                tail=tail_time(profile, cls.mean_prompt_tokens, _output(cls)),
            )
    deadline_ns = group.deadline_ns
    return PlannedGroup(
        id=group.id,
        model=group.cls.model,
        requests=group.remaining,
        deadline_s=None if deadline_ns is None else (deadline_ns - now_ns) / 1e9,
        priority=group.cls.priority,
        time=times,
    )


def _output(cls: ClassView) -> Normal:
    """Output length of a class: what was seen, held back by a prior of half the limit."""
    prior_tokens, prior_weight, variation = 0.5 * cls.mean_max_tokens, 5.0, 0.7
    seen = cls.mean_output_tokens or 0.0
    mean = (prior_weight * prior_tokens + cls.finished * seen) / (prior_weight + cls.finished)
    return Normal(max(1.0, mean), (variation * mean) ** 2)


def _queue_changes(view: ClusterView, groups: list[tuple[Group, ClassView]], plan: Plan) -> list[PlanChange]:
    """Set the queues that differ; empty lingering groups stay where they are, at the end."""
    present = {queue.instance: tuple(g.id for g in queue.groups) for queue in view.queues}
    alive = {group.id for group, _ in groups}
    planned = {group for queue in plan.queues.values() for group in queue}
    wanted: dict[InstanceId, tuple[GroupId, ...]] = {}
    for instance, queue in plan.queues.items():
        lingering = [g for g in present.get(instance, ()) if g in alive and g not in planned]
        wanted[instance] = (*queue, *lingering)
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
