"""When one request will get its place, its first token and its end, as distributions.

Looked at from the present order, and from the rates at which more urgent classes arrive.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from qlm.controller.estimating.classes import class_posterior
from qlm.controller.estimating.moment import InstanceMoment, Moment
from qlm.controller.estimating.overtaking import with_overtaking
from qlm.controller.estimating.own_batch import own_batch
from qlm.controller.estimating.parked_work import parked_work
from qlm.controller.estimating.service_times import ClassEntry, about_first_token, class_entry
from qlm.domain.fleet import EngineState
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import InstanceId
from qlm.domain.view import ClassView
from qlm.rct_estimator.completion_time import CompletionTime, request_completion
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.waiting_time import QueuePart, waiting_time

TO_ENGINE_S: Final = 0.004
"""From being accepted to being submitted where a place is free: a notice, a pull and a lease."""

FROM_ENGINE_S: Final = 0.002
"""From a token of the engine to the client: an entry of the log and a notice. Together with `TO_ENGINE_S`
what QLM was measured to add to a request (docs/measurements.md: 3.6 to 6.3 ms in the median)."""


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
    where they would wait least: behind the last group of their model that is more urgent, or before all
    where the model is loaded.
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
            return [place] if place else _anywhere(moment, asked, group.id, rank)
        rank -= group.remaining
    return _anywhere(moment, asked, None, max(0, rank))


def _place_in(moment: Moment, group: Group, before: int) -> _Place | None:
    for instance in moment.instances.values():
        for at, queued in enumerate(instance.queue):
            if queued.id == group.id:
                return _Place(instance=instance, ahead=instance.queue[:at], nth=before + 1)
    return None


def _anywhere(moment: Moment, asked: Asked, group: str | None, before: int) -> list[_Place]:
    model, due_ns = asked.cls.model, moment.now_ns + _deadline_s(asked) * 1e9
    places = []
    for instance in moment.instances.values():
        failed = (model, EngineState.FAILED) in instance.status.engines
        if failed or model not in instance.status.models:
            continue
        queue = tuple(each for each in instance.queue if each.id != group)
        first = [at for at, each in enumerate(queue) if _urgency(each) <= (asked.cls.priority, due_ns)]
        same = [at for at in first if queue[at].cls.model == model]
        at = same[-1] + 1 if same else (0 if instance.loaded == model else len(queue))
        places.append(_Place(instance=instance, ahead=queue[:at], nth=before + 1))
    return places


def _urgency(group: Group) -> tuple[int, float]:
    return group.cls.priority, math.inf if group.deadline_ns is None else group.deadline_ns


def _at(moment: Moment, asked: Asked, place: _Place) -> Forecast | None:
    instance, kind = place.instance, place.instance.status.accelerator
    entry = moment.state.times.entries.get((asked.cls, kind)) or _unknown(moment, asked, kind)
    if entry is None or any((g.cls, kind) not in moment.state.times.entries for g in place.ahead):
        return None
    parts = [*_parts(moment, place), _part(asked.cls, entry, place.nth, instance)]
    parts = _with_swaps(moment, instance, parts, [*(g.cls for g in place.ahead), asked.cls])
    own = parts[-1].state
    busy = _busy(moment, instance, asked)
    behind = waiting_time(parts, busy=busy, free=instance.free)
    # Its own prompt is part of its service, not of its wait.
    own_var = own.prompt_s**2 * own.prompt_cv2
    behind = Normal(max(0.0, behind.mean - own.prompt_s), max(0.0, behind.var - own_var))
    behind = with_overtaking(behind, moment, instance, asked.cls, _deadline_s(asked))
    wait = behind + Normal(TO_ENGINE_S)
    batch = own_batch(moment, instance, entry, parts, own)
    cap = float(asked.max_tokens) if asked.max_tokens else entry.posterior.cap
    first_s = batch.first_token_s(asked.prompt_tokens)
    first = CompletionTime(wait, first_s + FROM_ENGINE_S)
    begun = Normal(wait.mean + FROM_ENGINE_S, wait.var + float(first_s.var()))
    state = replace(batch.state, prefill_s=float(first_s.mean()), queue_s=0.0)
    done = request_completion(begun, state, entry.on_kind.lengths, cap=cap)
    first, done = (_with_doubt(each, state.doubt, busy.mean) for each in (first, done))
    return Forecast(
        instance=instance.status.id,
        wait=wait,
        first_token=first,
        completion=done,
        met=_met(asked, first if about_first_token(asked.cls) else done),
    )


def _busy(moment: Moment, instance: InstanceMoment, asked: Asked) -> Normal:
    """Until the first group of the queue can start, unless evicted requests let that of `asked` go first."""
    if not (instance.parked or instance.staged) or instance.loaded is None:
        return instance.busy
    kind = instance.status.accelerator
    work = parked_work(instance.staged, instance.parked, instance.loaded, kind, moment.state, asked=asked.cls)
    return instance.loading + work.scaled(instance.correction.factor)


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
