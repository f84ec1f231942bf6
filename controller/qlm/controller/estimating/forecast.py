"""When one request will get its place, its first token and its end, as distributions.

Looked at from the present order, and from the rates at which more urgent classes arrive.
"""

import math
from dataclasses import dataclass, replace

from qlm.controller.estimating.classes import class_posterior
from qlm.controller.estimating.moment import InstanceMoment, Moment
from qlm.controller.estimating.overtaking import with_overtaking
from qlm.controller.estimating.service_times import ClassEntry, about_first_token, class_entry
from qlm.domain.fleet import EngineState
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import InstanceId
from qlm.domain.view import ClassView
from qlm.rct_estimator.completion_time import CompletionTime, first_token, request_completion
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.throughput import SteadyState, full_batch, steady_state
from qlm.rct_estimator.waiting_time import QueuePart, waiting_time
from qlm.rct_estimator.workload import Workload, mixture


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Whose times are asked for.

    Attributes:
        cls: Its class.
        rank: Waiting requests of its class before it; None for one that arrives now.
        prompt_tokens: Its prompt, if known; else it is taken for an average one of its class.
        max_tokens: Its output limit, likewise.
        age_s: Seconds since it arrived.
    """

    cls: RequestClass
    rank: int | None = None
    prompt_tokens: int | None = None
    max_tokens: int | None = None
    age_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forecast:
    """What is expected of it, seconds from now.

    Attributes:
        instance: Where it is expected to run.
        wait: Until it has its place.
        first_token: Until its first token.
        completion: Until its end.
        met: Probability that it meets its objective; 1 without one.
    """

    instance: InstanceId
    wait: Normal
    first_token: CompletionTime
    completion: CompletionTime
    met: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A place in a virtual queue: behind `ahead` and as the `nth` of its own group or class."""

    instance: InstanceMoment
    ahead: tuple[Group, ...]
    nth: int


def forecast(moment: Moment, asked: Asked) -> Forecast | None:
    """Forecast one request; None if no live instance can serve it.

    A waiting request belongs to the group that covers its rank, and with it to an instance. One that
    arrives now joins the newest group of its class if that is open and on a queue. All others are expected
    where they would wait least, behind the last group of their model, or before all where it is loaded.
    """
    places = _places(moment, asked)
    found = [_at(moment, asked, place) for place in places]
    return min((each for each in found if each is not None), key=lambda f: f.wait.mean, default=None)


def _places(moment: Moment, asked: Asked) -> list[_Place]:
    view = moment.classes.get(asked.cls)
    groups = [group for group, cls in moment.groups if cls.cls == asked.cls]
    rank = asked.rank if asked.rank is not None else (view.queued if view else 0)
    for group in groups:
        joins = asked.rank is None and group is groups[-1] and not group.sealed
        if rank < group.remaining or joins:
            place = _place_in(moment, group, rank)
            return [place] if place else _anywhere(moment, asked.cls, group.id, rank)
        rank -= group.remaining
    return _anywhere(moment, asked.cls, None, max(0, rank))


def _place_in(moment: Moment, group: Group, before: int) -> _Place | None:
    for instance in moment.instances.values():
        for at, queued in enumerate(instance.queue):
            if queued.id == group.id:
                return _Place(instance=instance, ahead=instance.queue[:at], nth=before + 1)
    return None


def _anywhere(moment: Moment, cls: RequestClass, group: str | None, before: int) -> list[_Place]:
    places = []
    for instance in moment.instances.values():
        failed = (cls.model, EngineState.FAILED) in instance.status.engines
        if failed or cls.model not in instance.status.models:
            continue
        queue = tuple(each for each in instance.queue if each.id != group)
        same = [at for at, each in enumerate(queue) if each.cls.model == cls.model]
        at = same[-1] + 1 if same else (0 if instance.loaded == cls.model else len(queue))
        places.append(_Place(instance=instance, ahead=queue[:at], nth=before + 1))
    return places


def _at(moment: Moment, asked: Asked, place: _Place) -> Forecast | None:
    instance, kind = place.instance, place.instance.status.accelerator
    entry = moment.state.times.entries.get((asked.cls, kind)) or _unknown(moment, asked, kind)
    if entry is None or any((g.cls, kind) not in moment.state.times.entries for g in place.ahead):
        return None
    parts = [*_parts(moment, place), _part(asked.cls, entry, place.nth, instance)]
    parts = _with_swaps(moment, instance, parts, [*(g.cls for g in place.ahead), asked.cls])
    own = parts[-1].state
    behind = waiting_time(parts, busy=instance.busy, free=instance.free)
    behind = with_overtaking(behind, moment, instance, asked.cls, _deadline_s(asked))
    # Its own prompt is part of its service, not of its wait.
    wait = Normal(max(0.0, behind.mean - own.prompt_s), behind.var)
    state = _for_its_prompt(_in_its_batch(moment, instance, entry, parts, own), entry, asked)
    cap = float(asked.max_tokens) if asked.max_tokens else entry.posterior.cap
    first, done = first_token(wait, state), request_completion(wait, state, entry.on_kind.lengths, cap=cap)
    first, done = (_with_doubt(each, state.doubt, instance.busy.mean) for each in (first, done))
    return Forecast(
        instance=instance.status.id,
        wait=wait,
        first_token=first,
        completion=done,
        met=_met(asked, first if about_first_token(asked.cls) else done),
    )


def _unknown(moment: Moment, asked: Asked, kind: str) -> ClassEntry | None:
    """A class that the store knows nothing of yet, with typical lengths."""
    profile = moment.state.profiles.get((asked.cls.model, kind))
    if profile is None or asked.cls.model not in moment.fleet.kinds[kind].models:
        return None
    view = ClassView(
        cls=asked.cls,
        queued=0,
        groups=(),
        mean_prompt_tokens=float(asked.prompt_tokens or 0),
        mean_max_tokens=float(asked.max_tokens or 0),
    )
    return class_entry(asked.cls, class_posterior(view), profile)


def _part(cls: RequestClass, entry: ClassEntry, requests: int, instance: InstanceMoment) -> QueuePart:
    state = entry.on_kind.state.corrected(instance.correction)
    return QueuePart(state=state, requests=requests, cls=cls)


def _parts(moment: Moment, place: _Place) -> list[QueuePart]:
    entries, kind = moment.state.times.entries, place.instance.status.accelerator
    return [_part(g.cls, entries[g.cls, kind], g.remaining, place.instance) for g in place.ahead]


def _with_swaps(
    moment: Moment, instance: InstanceMoment, parts: list[QueuePart], classes: list[RequestClass]
) -> list[QueuePart]:
    """Add model changes, each after the batch before it has run empty."""
    kind, entries = moment.on(instance.status.id), moment.state.times.entries
    loaded, at_hand = instance.loaded, set(instance.warm)
    emptying, in_run = instance.emptying, float(instance.status.running)
    changed = []
    for part, cls in zip(parts, classes, strict=True):
        model = cls.model
        if model != loaded:
            cost = kind.models[model]
            swap_s = cost.swap_warm_s if model in at_hand else cost.swap_cold_s
            swap_s += kind.models[loaded].unload_s if loaded in kind.models else 0.0
            part, in_run = replace(part, swap=Normal(swap_s), emptying=emptying), 0.0
        at_hand |= {model, *((loaded,) if loaded else ())}
        loaded, in_run = model, in_run + part.requests
        entry = entries.get((cls, instance.status.accelerator))
        if entry is not None:
            factor = instance.correction.factor
            emptying = entry.times.emptying(in_run).scaled(factor)
        changed.append(part)
    return changed


def _in_its_batch(
    moment: Moment, instance: InstanceMoment, entry: ClassEntry, parts: list[QueuePart], own: SteadyState
) -> SteadyState:
    """The state of the batch that it will run in: as full as it will be, and mixed as it will be.

    A batch that is not full stays about as full as it is. One that several classes share runs at the
    pace of their mixture, each weighted by the places it takes.
    """
    run = _run_of_last(parts)
    requests = sum(part.requests for part in run)
    running = 0.0 if run[0].swap is not None else float(instance.status.running + instance.status.parked)
    beside = _running(moment, instance, entry, running)
    alike = {part.cls for part in run} >= {cls for cls, _, _ in beside} and len({p.cls for p in run}) == 1
    shares: list[tuple[float, Workload]] = [(p.requests, p.state.workload) for p in run if p.requests]
    mixed = own.workload if alike else mixture([*shares, *((n, work) for _, n, work in beside)])
    batch = min(own.batch if alike else full_batch(entry.profile, mixed), running + requests)
    if alike and batch >= own.batch:
        return replace(own, queue_s=0.0)
    shared = steady_state(entry.profile, mixed, batch=batch).corrected(instance.correction)
    alone = steady_state(entry.profile, own.workload, batch=batch).corrected(instance.correction)
    full = batch >= full_batch(entry.profile, mixed)
    return replace(
        alone,
        iteration_s=shared.iteration_s,
        prefill_s=alone.own_prefill_s + shared.prefill_s - shared.own_prefill_s,
        queue_s=0.0 if full else shared.queue_s,
    )


def _running(
    moment: Moment, instance: InstanceMoment, entry: ClassEntry, running: float
) -> list[tuple[RequestClass, float, Workload]]:
    """Split what runs over the classes of its model, as fast as they arrive; nobody counts them."""
    rates = [
        (cls, each.rate_rps, moment.state.times.entries[cls, instance.status.accelerator])
        for cls, each in moment.state.arrivals.items()
        if each.count and (cls, instance.status.accelerator) in moment.state.times.entries
    ]
    of_model = [(c, r, e.on_kind.state.workload) for c, r, e in rates if e.profile is entry.profile]
    total = sum(rate for _, rate, _ in of_model)
    return [(cls, running * rate / total, work) for cls, rate, work in of_model if running]


def _run_of_last(parts: list[QueuePart]) -> list[QueuePart]:
    """The parts from the last model change on."""
    for at in range(len(parts) - 1, -1, -1):
        if parts[at].swap is not None:
            return parts[at:]
    return parts


def _for_its_prompt(state: SteadyState, entry: ClassEntry, asked: Asked) -> SteadyState:
    """Let its prefill be that of its own prompt, where that is known."""
    if asked.prompt_tokens is None:
        return state
    profile = entry.profile
    ratio = profile.prefill_ms(1, asked.prompt_tokens) / profile.prefill_ms(1, state.workload.prompt_tokens)
    return replace(state, prefill_s=state.prefill_s + (ratio - 1) * state.own_prefill_s)


def _with_doubt(time: CompletionTime, doubt: float, busy_s: float) -> CompletionTime:
    """Add what the doubt about the instance's speed does to its own service, as it does to the wait."""
    worked_s = max(0.0, time.wait.mean - busy_s)
    whole_s = worked_s + float(time.service_s.mean())
    extra = doubt**2 * (whole_s**2 - worked_s**2)
    return replace(time, wait=Normal(time.wait.mean, time.wait.var + extra))


def _deadline_s(asked: Asked) -> float:
    target_ms = asked.cls.target_ms
    return math.inf if target_ms is None else target_ms / 1000 - asked.age_s


def _met(asked: Asked, time: CompletionTime) -> float:
    return 1.0 if asked.cls.target_ms is None else time.at_most(_deadline_s(asked))
