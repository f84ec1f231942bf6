"""A snapshot of the cluster for the estimator: when each instance is free, and its queue."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from qlm.controller.core.estimating.instances import (
    InstanceHistory,
    ModelLoad,
    Repeats,
    pooled_corrections,
    sleeping_tiers,
)
from qlm.controller.core.estimating.predecessors import predecessors_work, remaining_staged
from qlm.controller.core.estimating.service_times import ClassEntry
from qlm.controller.core.estimating.state import EstimatorState
from qlm.controller.core.fleet import Fleet
from qlm.domain.fleet import InstanceStatus, StagedWork
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.domain.operations import SwapTier
from qlm.domain.view import ClassView, ClusterView
from qlm.planner.problem import Kind
from qlm.planner.swapping.swaps import swap_cost
from qlm.rct_estimator.correction import Correction
from qlm.rct_estimator.normal import NOTHING, Normal


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InstanceSnapshot:
    """One instance that accepts work.

    Attributes:
        status: Last report of the agent, adjusted to the leases it holds now.
        loaded: The model that is loaded or being loaded.
        asleep: Sleeping models.
        loading: Time left of loading.
        unclassified: Requests that the agent holds beyond its batch, of unknown classes.
        staged: Requests that the agent holds beyond its batch, of classes that it reports.
        busy: Time until a queued request can start: loading, then the work of the requests above.
        free: Batch slots left after those; `inf` where nothing runs.
        correction: Speed correction for the loaded model.
        repeats: Prompts of the loaded model that were computed again after preemptions.
        entry: The class that sizes the batch: that of the first queued group of the loaded model, else any
            class of that model; None if there is none.
        queue: Groups with waiting requests on its virtual queue, first served first.
    """

    status: InstanceStatus
    loaded: ModelId | None
    asleep: Mapping[ModelId, SwapTier]
    loading: Normal
    unclassified: float
    staged: tuple[StagedWork, ...]
    busy: Normal
    free: float
    correction: Correction
    repeats: Repeats
    entry: ClassEntry | None
    queue: tuple[Group, ...]

    @property
    def emptying(self) -> Normal:
        """Time to empty the batch before a model swap, as if its last request had just started."""
        if self.entry is None or not self.status.running:
            return NOTHING
        return self.entry.times.emptying(self.status.running).scaled(self.correction.factor)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """The cluster at one instant.

    Attributes:
        now_ns: Time of the snapshot, nanoseconds since the epoch.
        state: State of the estimator.
        fleet: Costs and profiles.
        groups: All groups in order, each with its class.
        classes: All classes, with or without groups.
        instances: Instances that accept work, by name.
        pooled: Corrections common to a model on a kind of accelerator.
        serving: Number of instances that accept work, by model.
        full_batches: Largest full batch of a class, by model and kind of accelerator.
    """

    now_ns: int
    state: EstimatorState
    fleet: Fleet
    groups: Sequence[tuple[Group, ClassView]]
    classes: Mapping[RequestClass, ClassView]
    instances: Mapping[InstanceId, InstanceSnapshot]
    pooled: Mapping[tuple[ModelId, str], Correction]
    serving: Mapping[ModelId, int]
    full_batches: Mapping[tuple[ModelId, str], float]

    def on(self, id: InstanceId) -> Kind:
        """Return the swap costs on the kind of an instance."""
        return self.fleet.kinds[self.instances[id].status.accelerator]


def take_snapshot(
    view: ClusterView,
    groups: Sequence[tuple[Group, ClassView]] | None = None,
    *,
    now_ns: int,
    fleet: Fleet,
    state: EstimatorState,
) -> Snapshot:
    """Build the snapshot of a view.

    Args:
        view: The cluster; the last one that `state` learned from.
        groups: Its groups after regrouping; None for those of the view.
        now_ns: The present, nanoseconds since the epoch.
        fleet: Costs and profiles.
        state: State of the estimator.
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
        leased = view.leased.get(status.id)
        instances[status.id] = _instance(status, leased, queue, state, fleet, of_model, pooled, now_ns)
    return Snapshot(
        now_ns=now_ns,
        state=state,
        fleet=fleet,
        groups=groups,
        classes={each.cls: each for each in view.classes},
        instances=instances,
        pooled=pooled,
        serving=Counter(model for each in instances.values() for model in each.status.models),
        full_batches=_full_batches(state),
    )


def _full_batches(state: EstimatorState) -> dict[tuple[ModelId, str], float]:
    largest: dict[tuple[ModelId, str], float] = {}
    for (cls, kind), entry in state.times.entries.items():
        key = (cls.model, kind)
        largest[key] = max(largest.get(key, 0.0), entry.times.batch, entry.on_kind.state.batch)
    return largest


def _waiting(ids: Sequence[GroupId], present: Mapping[GroupId, Group]) -> tuple[Group, ...]:
    groups = (present.get(id) for id in ids)
    return tuple(group for group in groups if group is not None and group.remaining)


def _instance(
    status: InstanceStatus,
    leased: int | None,
    queue: tuple[Group, ...],
    state: EstimatorState,
    fleet: Fleet,
    of_model: Mapping[tuple[ModelId, str], ClassEntry],
    pooled: Mapping[tuple[ModelId, str], Correction],
    now_ns: int,
) -> InstanceSnapshot:
    kind, history = status.accelerator, state.instances[status.id]
    loaded = history.loading.model if history.loading else status.active_model
    entry = None
    if loaded is not None:
        head = next((group for group in queue if group.cls.model == loaded), None)
        entry = state.times.entries.get((head.cls, kind)) if head else of_model.get((loaded, kind))
    correction = _correction(history, loaded, pooled.get((loaded, kind)) if loaded else None)
    status = _with_leases(status, leased, entry)
    free, busy = _free(status, entry), NOTHING
    if history.loading:
        free, busy = math.inf, loading_left(history.loading, fleet.kinds[kind], now_ns)
    loading, unclassified, staged = busy, 0.0, tuple[StagedWork, ...]()
    if status.parked and loaded is not None and entry is not None:
        waiting = max(0.0, status.parked - free)
        reported = sum(each.fresh + each.evicted for each in status.staged)
        staged = remaining_staged(status.staged, max(0, reported - math.floor(waiting)))
        unclassified = max(0.0, waiting - reported)
        busy += predecessors_work(staged, unclassified, loaded, kind, state).scaled(correction.factor)
        free = max(0.0, free - status.parked)
    return InstanceSnapshot(
        status=status,
        loaded=loaded,
        asleep=sleeping_tiers(status),
        loading=loading,
        unclassified=unclassified,
        staged=staged,
        busy=busy,
        free=free,
        correction=correction,
        repeats=history.repeats.get(loaded, Repeats()) if loaded is not None else Repeats(),
        entry=entry,
        queue=queue,
    )


def _correction(history: InstanceHistory, model: ModelId | None, pooled: Correction | None) -> Correction:
    """Return the instance's correction for the model, else the common one of its kind, else none."""
    own = history.corrections.get(model) if model is not None else None
    return own or pooled or Correction()


def _with_leases(status: InstanceStatus, leased: int | None, entry: ClassEntry | None) -> InstanceStatus:
    """Return the last heartbeat of an agent, adjusted to the number of leases it holds now.

    Requests leased since then took a batch slot or wait for one. Where requests ended, waiting ones started.

    Args:
        status: The last heartbeat.
        leased: Leases of the agent; None if unknown.
        entry: The class that sizes the batch.
    """
    if leased is None or entry is None:
        return status
    came = leased - status.running - status.parked
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
    """Return the free batch slots for new requests, bounded by the KV cache left."""
    if not status.running or entry is None:
        return math.inf
    slots = entry.times.batch - status.running
    needed = entry.on_kind.state.workload.prompt_tokens + entry.profile.block_tokens
    fit = (entry.profile.kv_tokens - status.kv_used_tokens) / needed
    return max(0.0, min(slots, math.floor(fit)))


def loading_left(loading: ModelLoad, kind: Kind, now_ns: int) -> Normal:
    """Return the time left of a model load; at least a tenth of the whole, for a load that is overdue.

    The standard deviation is a tenth of the whole: loads of one model on one machine differ little.
    """
    cost = kind.models.get(loading.model)
    if cost is None:
        return NOTHING
    whole_s = swap_cost(cost).takes_s(loading.tier)
    left_s = max(0.1 * whole_s, whole_s - (now_ns - loading.since_ns) / 1e9)
    return Normal(left_s, (0.1 * whole_s) ** 2)
