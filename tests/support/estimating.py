"""Small clusters for the estimator: engines whose iterations take `STEP_S` whatever they compute."""

from dataclasses import replace

import numpy as np

from qlm.controller.core.estimating.snapshot import Snapshot, take_snapshot
from qlm.controller.core.estimating.state import NOTHING_LEARNED, learn
from qlm.controller.core.fleet import Fleet
from qlm.controller.core.history.classes import ClassRecord
from qlm.domain.fleet import EngineCapacity, EngineState, InstanceStatus
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import GroupId, InstanceId, ModelId, SessionId
from qlm.domain.lease import Holder
from qlm.domain.length_histogram import NO_LENGTHS, LengthHistogram
from qlm.domain.outcome import Outcome
from qlm.domain.view import ClassView, ClusterView
from qlm.domain.virtual_queue import VirtualQueue
from qlm.planner.problem import Kind, ModelCost
from qlm.rct_estimator.length_predictive import FloatArray
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.rct_estimator.profiles.iteration import IterationTime
from qlm.rct_estimator.profiles.profile import Profile
from qlm.store.core.length_stats import LengthStats
from support.batch_slots import CAP, STEP_S, draw

S = 1_000_000_000
NOW_NS = 1_000 * S
M, N = ModelId("m"), ModelId("n")
KIND = "GPU"
CHAT = RequestClass(M, "deadline-16s", target_ms=20_000.0)
STREAM = RequestClass(M, "ttft-1s", target_ms=1_000.0)
BATCH = RequestClass(M, "batch")
OTHER = RequestClass(N, "deadline-16s", target_ms=20_000.0)
SHIPPED = find_profile(builtin_profiles(), "mistral-7b", "A100")
COST = ModelCost(weights_bytes=1, swap_warm_s=2.0, swap_cold_s=30.0, unload_s=1.0)


def steady_profile(places: int) -> Profile:
    """A profile of an engine with so many places, more KV cache than they need, and constant iterations."""
    return replace(
        SHIPPED,
        iteration=IterationTime.constant(STEP_S * 1000),
        request_ms=0.0,
        async_scheduling=False,
        seqs_max=places,
        kv_tokens=10_000_000,
    )


def steady_fleet(places: int) -> Fleet:
    """Two models on one kind of accelerator."""
    profile = steady_profile(places)
    kind = Kind(host_memory_bytes=10, models={M: COST, N: COST})
    return Fleet(kinds={KIND: kind}, profiles={(M, KIND): profile, (N, KIND): profile})


def instance(
    name: str = "gpu-0", *, running: int = 0, parked: int = 0, active: ModelId = M
) -> InstanceStatus:
    return InstanceStatus(
        holder=Holder(InstanceId(name), SessionId("s")),
        accelerator=KIND,
        models=(M, N),
        active_model=active,
        engines=((active, EngineState.AWAKE),),
        running=running,
        parked=parked,
        kv_used_tokens=100 * running,
    )


def capacity(places: int) -> EngineCapacity:
    profile = steady_profile(places)
    return EngineCapacity(
        kv_tokens=profile.kv_tokens,
        block_tokens=profile.block_tokens,
        seqs_max=places,
        context_tokens=profile.context_tokens,
    )


def counted(lengths: FloatArray) -> LengthHistogram:
    """What a store counts of answers; those as long as CAP were cut off."""
    stats = LengthStats()
    for tokens in lengths.astype(int).ravel().tolist():
        stats.count(tokens, Outcome.LENGTH if tokens >= CAP else Outcome.STOP, 10**9)
    return stats.value


LENGTHS = counted(draw(np.random.default_rng(5), 2000))


def groups_of(cls: RequestClass, *counts: int, sealed: bool = False) -> tuple[Group, ...]:
    return tuple(
        Group(
            id=GroupId(f"{cls.model}-{cls.slo}-{n}"),
            cls=cls,
            seq=n,
            count=count,
            sealed=sealed,
            head_arrival_ns=NOW_NS if count else None,
        )
        for n, count in enumerate(counts)
    )


def class_view(cls: RequestClass, lengths: LengthHistogram, *groups: Group, ungrouped: int = 0) -> ClassView:
    return ClassView(
        cls=cls,
        queued=sum(group.remaining for group in groups) + ungrouped,
        groups=groups,
        newest_arrival_ns=NOW_NS if groups or ungrouped else None,
        mean_prompt_tokens=1.0,
        mean_max_tokens=CAP,
        lengths=lengths,
    )


def cluster(
    *classes: ClassView, instances: tuple[InstanceStatus, ...], queues: dict[str, tuple[Group, ...]]
) -> ClusterView:
    return ClusterView(
        classes=classes,
        instances=instances,
        queues=tuple(VirtualQueue(instance=InstanceId(id), groups=groups) for id, groups in queues.items()),
    )


def first_snapshot(view: ClusterView, fleet: Fleet, *, now_ns: int = NOW_NS) -> Snapshot:
    """Return what a controller without a past sees in a view."""
    state = learn(NOTHING_LEARNED, view, now_ns=now_ns, fleet=fleet)
    return take_snapshot(view, now_ns=now_ns, fleet=fleet, state=state)


def view_of(*classes: ClassView) -> ClusterView:
    """Return a cluster of one instance with these classes and no plan."""
    return cluster(*classes, instances=(instance(),), queues={})


def seen(cls: RequestClass, lengths: LengthHistogram = NO_LENGTHS, accepted: int | None = None) -> ClassView:
    """Return a class with one request that waits, and as many that have ended as there are lengths."""
    finished = lengths.answers
    view = class_view(cls, lengths, ungrouped=1)
    return replace(view, finished=finished, accepted=finished + 1 if accepted is None else accepted)


def class_record(tokens: float, answers: int, at_ns: int) -> ClassRecord:
    """Return what was recorded of a class whose answers all have one length."""
    return ClassRecord(
        at_ns=at_ns,
        finished=answers,
        mean_prompt_tokens=300.0,
        var_prompt_tokens=0.0,
        mean_max_tokens=512.0,
        var_max_tokens=0.0,
        lengths=counted(np.full(answers, tokens)),
    )
