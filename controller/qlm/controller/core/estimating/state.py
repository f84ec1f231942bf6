"""State of the estimator as one value: passed in with each view, returned updated.

A standby controller keeps learning. A new one begins with the history that the leader stored
(`controller.core.history`), or with nothing.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Final

from qlm.controller.core.estimating.arrivals import Arrivals, update_arrivals
from qlm.controller.core.estimating.classes import ClassPosterior, class_posteriors
from qlm.controller.core.estimating.instances import InstanceHistory, Profiles, update_histories
from qlm.controller.core.estimating.kv_occupancy import kv_occupancies, model_mixtures
from qlm.controller.core.estimating.service_times import NO_TIMES, ServiceTimes, service_times
from qlm.controller.core.expected.log import NOTHING_FORECAST, ForecastLog, look
from qlm.controller.core.fleet import Fleet
from qlm.controller.core.history.classes import ClassRecord, update_records
from qlm.controller.core.history.speeds import Speeds, read_speeds
from qlm.domain.fleet import EngineCapacity
from qlm.domain.group import RequestClass
from qlm.domain.ids import InstanceId, ModelId
from qlm.domain.view import ClusterView
from qlm.rct_estimator.profiles.profile import Profile


@dataclass(frozen=True, slots=True, eq=False)
class EstimatorState:
    """State of the estimator.

    Attributes:
        classes: Posteriors of the classes in the last view, and of recently seen ones.
        instances: Histories of the instances in the last view.
        profiles: Profiles, with the capacity that live engines report.
        times: Service times of the classes on the kinds of accelerators.
        arrivals: Arrival statistics of the classes.
        records: Counts of the classes that came lately, or are known from a history.
        speeds: Speeds of instances that have left the view, or are known from a history.
        since_ns: Time of the first view, nanoseconds since the epoch; None before it.
        forecasts: Forecasts that were made, and how they came out.
    """

    classes: Mapping[RequestClass, ClassPosterior] = field(default_factory=dict)
    instances: Mapping[InstanceId, InstanceHistory] = field(default_factory=dict)
    profiles: Profiles = field(default_factory=dict)
    times: ServiceTimes = NO_TIMES
    arrivals: Mapping[RequestClass, Arrivals] = field(default_factory=dict)
    records: Mapping[RequestClass, ClassRecord] = field(default_factory=dict)
    speeds: Speeds = field(default_factory=dict)
    since_ns: int | None = None
    forecasts: ForecastLog = NOTHING_FORECAST


NOTHING_LEARNED: Final = EstimatorState()
"""Initial state of a controller without a history."""


def learn(state: EstimatorState, view: ClusterView, *, now_ns: int, fleet: Fleet) -> EstimatorState:
    """Return the state after a view; `state` itself if nothing changed.

    Args:
        state: The state so far, with the same fleet.
        view: The cluster.
        now_ns: Time of the view, nanoseconds since the epoch.
        fleet: Costs and profiles.
    """
    profiles = _with_reported_capacity(view, fleet, state.profiles)
    arriving = update_arrivals(view, now_ns, state.arrivals, state.since_ns)
    due = {cls for cls, known in arriving.items() if known is not state.arrivals.get(cls)}
    records = update_records(view, now_ns, due, state.records)
    classes = class_posteriors(view, state.classes, arriving, records)
    mixed = model_mixtures(classes)
    speeds = _speeds_left(view, now_ns, state)
    since_ns = now_ns if state.since_ns is None else state.since_ns
    instances = update_histories(view, now_ns, profiles, state.instances, mixed, speeds)
    occupancies = kv_occupancies(view, instances, mixed)
    times = service_times(view, fleet, classes, profiles, occupancies, state.times)
    came = look(state.forecasts, view, now_ns)
    after = EstimatorState(classes, instances, profiles, times, arriving, records, speeds, since_ns, came)
    same = all(getattr(after, f.name) is getattr(state, f.name) for f in fields(EstimatorState))
    return state if same else after


def _speeds_left(view: ClusterView, now_ns: int, state: EstimatorState) -> Speeds:
    """Return the speeds with those of instances that have left."""
    present = {status.id for status in view.instances}
    left = {id: known for id, known in state.instances.items() if id not in present}
    statuses = [known.since for known in left.values()]
    corrections = {id: known.corrections for id, known in left.items()}
    return read_speeds(statuses, corrections, now_ns, state.speeds)


def _with_reported_capacity(view: ClusterView, fleet: Fleet, before: Profiles) -> Profiles:
    """Return the profiles with the batch slots, token budget and KV cache that live engines report.

    Engines of one model on one kind of accelerator are assumed to be equal; if they differ, the smallest
    counts. A report stays valid until another one.
    """
    reported: dict[tuple[ModelId, str], EngineCapacity] = {}
    for status in view.instances:
        if status.active_model is not None and status.capacity is not None:
            key = (status.active_model, status.accelerator)
            reported[key] = min(reported.get(key, status.capacity), status.capacity, key=_rank)
    changed = {
        key: _with_capacity(known, capacity)
        for key, capacity in reported.items()
        if (known := before.get(key) or fleet.profiles.get(key)) is not None and not _agree(known, capacity)
    }
    return {**(before or fleet.profiles), **changed} if changed or not before else before


def _rank(capacity: EngineCapacity) -> tuple[int, ...]:
    return (*_size(capacity), capacity.batched_tokens_max or sys.maxsize)


def _size(capacity: EngineCapacity) -> tuple[int, int, int, int]:
    return (capacity.kv_tokens, capacity.seqs_max, capacity.context_tokens, capacity.block_tokens)


def _agree(profile: Profile, capacity: EngineCapacity) -> bool:
    kv_tokens = max(capacity.kv_tokens, 2 * capacity.block_tokens)
    known = (profile.kv_tokens, profile.seqs_max, profile.context_tokens, profile.block_tokens)
    budget = capacity.batched_tokens_max or profile.batched_tokens_max
    return known == (kv_tokens, *_size(capacity)[1:]) and profile.batched_tokens_max == budget


def _with_capacity(profile: Profile, capacity: EngineCapacity) -> Profile:
    return replace(
        profile,
        kv_tokens=max(capacity.kv_tokens, 2 * capacity.block_tokens),
        seqs_max=capacity.seqs_max,
        batched_tokens_max=capacity.batched_tokens_max or profile.batched_tokens_max,
        context_tokens=capacity.context_tokens,
        block_tokens=capacity.block_tokens,
    )
