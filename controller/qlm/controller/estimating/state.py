"""All that the estimator has learned, as one value: passed in with each view, and returned renewed.

A controller that stands by learns all the time. It is rebuilt from nothing when none did: lengths at once,
since the stores keep their counts, and corrections within a minute of work.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Final

from qlm.controller.estimating.arrivals import Arrivals, arrivals
from qlm.controller.estimating.classes import ClassPosterior, class_posteriors
from qlm.controller.estimating.held import held_shapes
from qlm.controller.estimating.instances import InstanceMemory, Profiles, remembered
from qlm.controller.estimating.service_times import NO_TIMES, ServiceTimes, service_times
from qlm.controller.fleet import Fleet
from qlm.domain.fleet import EngineCapacity
from qlm.domain.group import RequestClass
from qlm.domain.ids import InstanceId, ModelId
from qlm.domain.view import ClusterView
from qlm.rct_estimator.profile import Profile


@dataclass(frozen=True, slots=True, eq=False)
class EstimatorState:
    """What was learned so far.

    Attributes:
        classes: Of the classes in the last view, and of those that have come lately.
        instances: Of the instances in it.
        profiles: Profiles with the capacity that live engines report instead of the profile's own.
        times: How long the classes take on the kinds of instances.
        arrivals: How fast requests of the classes arrive.
    """

    classes: Mapping[RequestClass, ClassPosterior] = field(default_factory=dict)
    instances: Mapping[InstanceId, InstanceMemory] = field(default_factory=dict)
    profiles: Profiles = field(default_factory=dict)
    times: ServiceTimes = NO_TIMES
    arrivals: Mapping[RequestClass, Arrivals] = field(default_factory=dict)


NOTHING_LEARNED: Final = EstimatorState()
"""Where every controller begins."""


def learned(state: EstimatorState, view: ClusterView, *, now_ns: int, fleet: Fleet) -> EstimatorState:
    """Learn from a view; `state` itself if it says nothing new.

    Args:
        state: What was learned so far, with the same fleet.
        view: The cluster at one moment.
        now_ns: That moment, nanoseconds since the epoch.
        fleet: Costs and profiles.
    """
    profiles = _as_reported(view, fleet, state.profiles)
    coming = arrivals(view, now_ns, state.arrivals)
    classes = class_posteriors(view, state.classes, coming)
    instances = remembered(view, now_ns, profiles, state.instances)
    shapes = held_shapes(view, instances, classes)
    times = service_times(view, fleet, classes, profiles, shapes, state.times)
    after = EstimatorState(classes, instances, profiles, times, coming)
    same = all(getattr(after, f.name) is getattr(state, f.name) for f in fields(EstimatorState))
    return state if same else after


def _as_reported(view: ClusterView, fleet: Fleet, before: Profiles) -> Profiles:
    """Let profiles say what live engines do of their places and KV cache.

    Engines of one model on one kind of accelerator are taken to be set up alike; if they are not, the
    smallest counts. What was reported stands until another report comes.
    """
    reported: dict[tuple[ModelId, str], EngineCapacity] = {}
    for status in view.instances:
        if status.active_model is not None and status.capacity is not None:
            key = (status.active_model, status.accelerator)
            reported[key] = min(reported.get(key, status.capacity), status.capacity, key=_size)
    changed = {
        key: _with_capacity(known, capacity)
        for key, capacity in reported.items()
        if (known := before.get(key) or fleet.profiles.get(key)) is not None and not _agree(known, capacity)
    }
    return {**(before or fleet.profiles), **changed} if changed or not before else before


def _size(capacity: EngineCapacity) -> tuple[int, int, int, int]:
    return (capacity.kv_tokens, capacity.seqs_max, capacity.context_tokens, capacity.block_tokens)


def _agree(profile: Profile, capacity: EngineCapacity) -> bool:
    kv_tokens = max(capacity.kv_tokens, 2 * capacity.block_tokens)
    said = (profile.kv_tokens, profile.seqs_max, profile.context_tokens, profile.block_tokens)
    return said == (kv_tokens, *_size(capacity)[1:])


def _with_capacity(profile: Profile, capacity: EngineCapacity) -> Profile:
    return replace(
        profile,
        kv_tokens=max(capacity.kv_tokens, 2 * capacity.block_tokens),
        seqs_max=capacity.seqs_max,
        context_tokens=capacity.context_tokens,
        block_tokens=capacity.block_tokens,
    )
