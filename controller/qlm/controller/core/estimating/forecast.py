"""Forecast of one request: distributions of its batch slot, its first token and its end.

Based on the present order of the queues, and on the arrival rates of more urgent classes.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from qlm.controller.core.estimating.classes import class_posterior
from qlm.controller.core.estimating.overtaking import with_overtaking
from qlm.controller.core.estimating.own_batch import own_batch
from qlm.controller.core.estimating.predecessors import predecessors_work
from qlm.controller.core.estimating.service_times import ClassEntry, class_entry
from qlm.controller.core.estimating.snapshot import InstanceSnapshot, Snapshot
from qlm.domain.fleet import EngineState
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import InstanceId
from qlm.domain.operations import SwapTier
from qlm.domain.urgency import urgency
from qlm.domain.view import ClassView
from qlm.planner.swapping.swaps import swap_cost
from qlm.rct_estimator.completion_time import CompletionTime, request_completion
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.readers import time_behind_s
from qlm.rct_estimator.throughput import SteadyState
from qlm.rct_estimator.waiting_time import QueuePart, waiting_time

TO_ENGINE_S: Final = 0.004
"""Time from acceptance to submission with a free batch slot: a notice, a pull and a lease."""

FROM_ENGINE_S: Final = 0.002
"""Time from a token of the engine to the client: a log entry and a notice. Together with `TO_ENGINE_S` the
measured overhead of QLM per request (docs/measurements-cost.md: 3.6 to 6.3 ms in the median)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastQuery:
    """The request to forecast.

    Attributes:
        cls: Its class.
        rank: Waiting requests of its class before it; None for a request that arrives now.
        prompt_tokens: Length of its prompt; None for the mean of its class.
        max_tokens: Its output limit; None for the mean of its class.
        age_s: Seconds since it arrived.
    """

    cls: RequestClass
    rank: int | None = None
    prompt_tokens: int | None = None
    max_tokens: int | None = None
    age_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forecast:
    """Forecast of one request, seconds from now.

    Attributes:
        instance: Instance that is expected to run it.
        wait: Time until it has a batch slot.
        first_token: Time until its first token.
        completion: Time until its end.
        met: Probability that it meets its SLO; 1 without one.
    """

    instance: InstanceId
    wait: Normal
    first_token: CompletionTime
    completion: CompletionTime
    met: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Position:
    """A position in a virtual queue: behind the groups `predecessors`, as the `nth` of its own group."""

    instance: InstanceSnapshot
    predecessors: tuple[Group, ...]
    nth: int


def forecast(snapshot: Snapshot, query: ForecastQuery) -> Forecast | None:
    """Forecast one request; return None if no live instance can serve it.

    A waiting request belongs to the group that covers its rank, and with it to an instance. A request that
    arrives now joins the newest group of its class if that is open and on a queue. All others are expected on
    the instance with the shortest wait: behind the last more urgent group of their model, or at the front
    where the model is loaded.
    """
    found = [_forecast_at(snapshot, query, position) for position in _positions(snapshot, query)]
    return min((each for each in found if each is not None), key=lambda f: f.wait.mean, default=None)


def _positions(snapshot: Snapshot, query: ForecastQuery) -> list[_Position]:
    view = snapshot.classes.get(query.cls)
    groups = [group for group, cls in snapshot.groups if cls.cls == query.cls]
    rank = query.rank if query.rank is not None else (view.queued if view else 0)
    for group in groups:
        joins = query.rank is None and group is groups[-1] and not group.sealed
        if rank < group.remaining or joins:
            position = _position_in(snapshot, group, rank)
            return [position] if position else _anywhere(snapshot, query, group.id, rank)
        rank -= group.remaining
    return _anywhere(snapshot, query, None, max(0, rank))


def _position_in(snapshot: Snapshot, group: Group, before: int) -> _Position | None:
    for instance in snapshot.instances.values():
        for at, queued in enumerate(instance.queue):
            if queued.id == group.id:
                return _Position(instance=instance, predecessors=instance.queue[:at], nth=before + 1)
    return None


def _anywhere(snapshot: Snapshot, query: ForecastQuery, group: str | None, before: int) -> list[_Position]:
    model, due_ns = query.cls.model, snapshot.now_ns + _deadline_s(query) * 1e9
    positions = []
    for instance in snapshot.instances.values():
        failed = (model, EngineState.FAILED) in instance.status.engines
        if failed or model not in instance.status.models:
            continue
        queue = tuple(each for each in instance.queue if each.id != group)
        mine = urgency(query.cls.priority, due_ns)
        keys = (urgency(each.cls.priority, each.deadline_ns) for each in queue)
        more_urgent = [at for at, key in enumerate(keys) if key <= mine]
        same = [at for at in more_urgent if queue[at].cls.model == model]
        at = same[-1] + 1 if same else (0 if instance.loaded == model else len(queue))
        positions.append(_Position(instance=instance, predecessors=queue[:at], nth=before + 1))
    return positions


def _forecast_at(snapshot: Snapshot, query: ForecastQuery, position: _Position) -> Forecast | None:
    instance, kind = position.instance, position.instance.status.accelerator
    entry = snapshot.state.times.entries.get((query.cls, kind)) or _unknown(snapshot, query, kind)
    if entry is None or any((g.cls, kind) not in snapshot.state.times.entries for g in position.predecessors):
        return None
    parts = [*_queue_parts(snapshot, position), _queue_part(query.cls, entry, position.nth, instance)]
    parts = _with_swaps(snapshot, instance, parts, [*(g.cls for g in position.predecessors), query.cls])
    own = parts[-1].state
    busy = _busy(snapshot, instance, query)
    queue_wait = waiting_time(parts, busy=busy, free=instance.free)
    # The prompt of the request is part of its service time, not of its wait.
    own_var = own.prompt_s**2 * own.prompt_cv2
    queue_wait = Normal(max(0.0, queue_wait.mean - own.prompt_s), max(0.0, queue_wait.var - own_var))
    queue_wait = with_overtaking(queue_wait, snapshot, instance, query.cls, _deadline_s(query))
    wait = queue_wait + Normal(TO_ENGINE_S)
    batch = own_batch(snapshot, instance, entry, parts, own)
    cap = float(query.max_tokens) if query.max_tokens else entry.posterior.cap
    first_s = batch.first_token_s(query.prompt_tokens)
    first = CompletionTime(wait, first_s + FROM_ENGINE_S)
    begun = Normal(wait.mean + FROM_ENGINE_S, wait.var + float(first_s.var()))
    state = replace(batch.state, prefill_s=float(first_s.mean()), queue_s=0.0)
    done = request_completion(begun, state, entry.on_kind.lengths, cap=cap)
    read = _as_read(snapshot, query.cls, first, done, state)
    first, done, read = (
        _with_uncertainty(each, state.uncertainty, busy.mean) for each in (first, done, read)
    )
    return Forecast(
        instance=instance.status.id,
        wait=wait,
        first_token=first,
        completion=done,
        met=_met(query, read if query.cls.about_first_token else done),
    )


def _as_read(
    snapshot: Snapshot, cls: RequestClass, first: CompletionTime, done: CompletionTime, state: SteadyState
) -> CompletionTime:
    """Return the first token, later by as much as the answer falls behind its reader after it."""
    pace = cls.tokens_per_s
    if pace is None or not snapshot.fleet.bounds_readers:
        return first
    steps = np.maximum(0.0, (done.service_s - state.prefill_s) / state.iteration_s)
    behind_s = time_behind_s(steps, state.iteration_s, pace)
    return CompletionTime(first.wait, float(first.service_s.mean()) + behind_s)


def _busy(snapshot: Snapshot, instance: InstanceSnapshot, query: ForecastQuery) -> Normal:
    """Return the time until its group can start, behind the requests that the agent holds."""
    if not (instance.unclassified or instance.staged) or instance.loaded is None:
        return instance.busy
    kind = instance.status.accelerator
    work = predecessors_work(
        instance.staged, instance.unclassified, instance.loaded, kind, snapshot.state, queued=query.cls
    )
    return instance.loading + work.scaled(instance.correction.factor)


def _unknown(snapshot: Snapshot, query: ForecastQuery, kind: str) -> ClassEntry | None:
    """Return the entry of a class that the store does not know yet, with typical lengths."""
    profile = snapshot.state.profiles.get((query.cls.model, kind))
    if profile is None or query.cls.model not in snapshot.fleet.kinds[kind].models:
        return None
    view = ClassView(
        cls=query.cls,
        queued=0,
        groups=(),
        mean_prompt_tokens=float(query.prompt_tokens or 0),
        mean_max_tokens=float(query.max_tokens or 0),
    )
    return class_entry(
        query.cls, class_posterior(view), profile, bounds_readers=snapshot.fleet.bounds_readers
    )


def _queue_part(cls: RequestClass, entry: ClassEntry, requests: int, instance: InstanceSnapshot) -> QueuePart:
    state = entry.on_kind.state.corrected(instance.correction)
    return QueuePart(state=state, requests=requests, cls=cls)


def _queue_parts(snapshot: Snapshot, position: _Position) -> list[QueuePart]:
    entries, kind = snapshot.state.times.entries, position.instance.status.accelerator
    return [
        _queue_part(g.cls, entries[g.cls, kind], g.remaining, position.instance)
        for g in position.predecessors
    ]


def _with_swaps(
    snapshot: Snapshot, instance: InstanceSnapshot, parts: list[QueuePart], classes: list[RequestClass]
) -> list[QueuePart]:
    """Add model swaps, each after the batch before it is empty."""
    kind, entries = snapshot.on(instance.status.id), snapshot.state.times.entries
    loaded, asleep = instance.loaded, dict(instance.asleep)
    emptying, batch_requests = instance.emptying, float(instance.status.running)
    changed = []
    for part, cls in zip(parts, classes, strict=True):
        model = cls.model
        if model != loaded:
            swap_s = swap_cost(kind.models[model]).takes_s(asleep.get(model, SwapTier.COLD))
            swap_s += kind.models[loaded].unload_s if loaded in kind.models else 0.0
            part, batch_requests = replace(part, swap=Normal(swap_s), emptying=emptying), 0.0
        asleep |= dict.fromkeys({model, *((loaded,) if loaded else ())}, SwapTier.WARM)
        loaded, batch_requests = model, batch_requests + part.requests
        entry = entries.get((cls, instance.status.accelerator))
        if entry is not None:
            factor = instance.correction.factor
            emptying = entry.times.emptying(batch_requests).scaled(factor)
        changed.append(part)
    return changed


def _with_uncertainty(time: CompletionTime, uncertainty: float, busy_s: float) -> CompletionTime:
    """Add the effect of the speed uncertainty on the service time; the wait has its part already."""
    worked_s = max(0.0, time.wait.mean - busy_s)
    whole_s = worked_s + float(time.service_s.mean())
    extra = uncertainty**2 * (whole_s**2 - worked_s**2)
    return replace(time, wait=Normal(time.wait.mean, time.wait.var + extra))


def _deadline_s(query: ForecastQuery) -> float:
    target_ms = query.cls.target_ms
    return math.inf if target_ms is None else target_ms / 1000 - query.age_s


def _met(query: ForecastQuery, time: CompletionTime) -> float:
    return 1.0 if query.cls.target_ms is None else time.at_most(_deadline_s(query))
