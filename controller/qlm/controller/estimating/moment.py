"""The cluster at one moment as the estimator sees it: who is free when, and what waits where."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from qlm.controller.estimating.instances import InstanceMemory, Loading, Repeats, pooled_corrections
from qlm.controller.estimating.parked_work import parked_work, still_staged
from qlm.controller.estimating.service_times import ClassEntry
from qlm.controller.estimating.state import EstimatorState
from qlm.controller.fleet import Fleet
from qlm.domain.fleet import InstanceStatus, StagedWork
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.domain.view import ClassView, ClusterView
from qlm.planner.problem import Kind
from qlm.rct_estimator.correction import Correction
from qlm.rct_estimator.normal import NOTHING, Normal


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InstanceMoment:
    """One instance that takes work.

    Attributes:
        status: What its agent says, with as many requests as it holds now.
        loaded: The model that is awake or on its way.
        warm: Models in host memory.
        loading: What is left of loading.
        parked: Requests in its agent's hands that wait for a place and of which nobody told the class.
        staged: Likewise those of which the agent did.
        busy: Until anything can start: what is left of loading, then what the parked requests need.
        free: Places free in its batch beyond those; `inf` where nothing runs.
        correction: How much slower than its profile it is.
        repeats: Prompts of the loaded model that it computed again lately.
        entry: The class that its places are counted in: that of the first group of the loaded model in
            its queue, or another of that model; None if there is none.
        queue: Groups with waiting requests on its virtual queue, first served first.
    """

    status: InstanceStatus
    loaded: ModelId | None
    warm: frozenset[ModelId]
    loading: Normal
    parked: float
    staged: tuple[StagedWork, ...]
    busy: Normal
    free: float
    correction: Correction
    repeats: Repeats
    entry: ClassEntry | None
    queue: tuple[Group, ...]

    @property
    def emptying(self) -> Normal:
        """If it is to change its model: until its batch has run empty, as if its last had just begun."""
        if self.entry is None or not self.status.running:
            return NOTHING
        return self.entry.times.emptying(self.status.running).scaled(self.correction.factor)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moment:
    """The cluster at one moment.

    Attributes:
        now_ns: When, nanoseconds since the epoch.
        state: What was learned up to now.
        fleet: Costs and profiles.
        groups: All groups, by class in their order, each with its class.
        classes: All classes, those without a group included.
        instances: Those that take work, by name.
        pooled: Corrections common to a model on a kind of accelerator.
        serving: Instances that take work, by each model that they may serve.
    """

    now_ns: int
    state: EstimatorState
    fleet: Fleet
    groups: Sequence[tuple[Group, ClassView]]
    classes: Mapping[RequestClass, ClassView]
    instances: Mapping[InstanceId, InstanceMoment]
    pooled: Mapping[tuple[ModelId, str], Correction]
    serving: Mapping[ModelId, int]

    def on(self, id: InstanceId) -> Kind:
        """Costs on the kind of an instance."""
        return self.fleet.kinds[self.instances[id].status.accelerator]


def moment(
    view: ClusterView,
    groups: Sequence[tuple[Group, ClassView]] | None = None,
    *,
    now_ns: int,
    fleet: Fleet,
    state: EstimatorState,
) -> Moment:
    """Gather what estimates need.

    Args:
        view: The cluster; the one that `state` has learned from last.
        groups: Its groups as they will be, if the controller has just changed them.
        now_ns: The present, nanoseconds since the epoch.
        fleet: Costs and profiles.
        state: What was learned.
    """
    if groups is None:
        groups = [(group, cls) for cls in view.classes for group in cls.groups]
    present = {group.id: group for group, _ in groups}
    queues = {queue.instance: [g.id for g in queue.groups] for queue in view.queues}
    pooled = pooled_corrections(view, state.instances)
    of_model = {(cls.model, kind): entry for (cls, kind), entry in state.times.entries.items()}
    instances = {}
    for status in view.instances:
        if status.draining or status.accelerator not in fleet.kinds:
            continue
        queue = _waiting(queues.get(status.id, ()), present)
        held = view.leased.get(status.id)
        instances[status.id] = _instance(status, held, queue, state, fleet, of_model, pooled, now_ns)
    return Moment(
        now_ns=now_ns,
        state=state,
        fleet=fleet,
        groups=groups,
        classes={each.cls: each for each in view.classes},
        instances=instances,
        pooled=pooled,
        serving=Counter(model for each in instances.values() for model in each.status.models),
    )


def _waiting(ids: Sequence[GroupId], present: Mapping[GroupId, Group]) -> tuple[Group, ...]:
    groups = (present.get(id) for id in ids)
    return tuple(group for group in groups if group is not None and group.remaining)


def _instance(
    status: InstanceStatus,
    held: int | None,
    queue: tuple[Group, ...],
    state: EstimatorState,
    fleet: Fleet,
    of_model: Mapping[tuple[ModelId, str], ClassEntry],
    pooled: Mapping[tuple[ModelId, str], Correction],
    now_ns: int,
) -> InstanceMoment:
    kind, memory = status.accelerator, state.instances[status.id]
    loaded = memory.loading.model if memory.loading else status.active_model
    entry = None
    if loaded is not None:
        head = next((group for group in queue if group.cls.model == loaded), None)
        entry = state.times.entries.get((head.cls, kind)) if head else of_model.get((loaded, kind))
    correction = _correction(memory, loaded, pooled.get((loaded, kind)) if loaded else None)
    status = _as_of_now(status, held, entry)
    free, busy = _free(status, entry), NOTHING
    if memory.loading:
        free, busy = math.inf, loading_left(memory.loading, fleet.kinds[kind], now_ns)
    loading, parked, staged = busy, 0.0, tuple[StagedWork, ...]()
    if status.parked and loaded is not None and entry is not None:
        parked = max(0.0, status.parked - free)
        told = sum(each.fresh + each.evicted for each in status.staged)
        staged = still_staged(status.staged, max(0, told - math.floor(parked)))
        parked = max(0.0, parked - told)
        busy += parked_work(staged, parked, loaded, kind, state).scaled(correction.factor)
        free = max(0.0, free - status.parked)
    return InstanceMoment(
        status=status,
        loaded=loaded,
        warm=frozenset(model for model, engine in status.engines if engine.sleeps),
        loading=loading,
        parked=parked,
        staged=staged,
        busy=busy,
        free=free,
        correction=correction,
        repeats=memory.repeats.get(loaded, Repeats()) if loaded is not None else Repeats(),
        entry=entry,
        queue=queue,
    )


def _correction(memory: InstanceMemory, model: ModelId | None, pooled: Correction | None) -> Correction:
    """What was seen of it with that model; else what its kind has in common; else nothing."""
    own = memory.corrections.get(model) if model is not None else None
    return own or pooled or Correction()


def _as_of_now(status: InstanceStatus, held: int | None, entry: ClassEntry | None) -> InstanceStatus:
    """Bring what an agent said with its last heartbeat up to the number of leases it holds now.

    Those that came since found a place or wait for one; where some ended, parked ones took their places.

    Args:
        status: What the agent said.
        held: Its leases; None if unknown.
        entry: The class that places are counted in.
    """
    if held is None or entry is None:
        return status
    came = held - status.running - status.parked
    if came >= 0:
        placed = min(came, math.floor(_free(status, entry))) if status.running else came
        tokens = entry.on_kind.state.workload.prompt_tokens
    else:
        placed = min(0, came + status.parked)
        tokens = status.kv_used_tokens / status.running if status.running else 0.0
    return replace(
        status,
        running=max(0, status.running + placed),
        parked=max(0, status.parked + came - placed),
        kv_used_tokens=max(0, status.kv_used_tokens + round(placed * tokens)),
    )


def _free(status: InstanceStatus, entry: ClassEntry | None) -> float:
    """Places that new requests find: of the full batch less those taken, as far as KV cache is left."""
    if not status.running or entry is None:
        return math.inf
    places = entry.times.batch - status.running
    held = entry.on_kind.state.workload.prompt_tokens + entry.profile.block_tokens
    room = (entry.profile.kv_tokens - status.kv_used_tokens) / held
    return max(0.0, min(places, math.floor(room)))


def loading_left(loading: Loading, kind: Kind, now_ns: int) -> Normal:
    """What is left of bringing a model up; a load that is over time is taken for nearly done.

    The deviation is a tenth of the whole: loads of one model on one machine differ little.
    """
    cost = kind.models.get(loading.model)
    if cost is None:
        return NOTHING
    whole_s = cost.swap_warm_s if loading.warm else cost.swap_cold_s
    left_s = max(0.1 * whole_s, whole_s - (now_ns - loading.since_ns) / 1e9)
    return Normal(left_s, (0.1 * whole_s) ** 2)
