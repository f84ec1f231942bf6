"""Whether a request is taken in now: a pure decision on what the cluster looked like a moment ago."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from qlm.domain.group import RequestClass
from qlm.domain.ids import ModelId
from qlm.domain.values import value
from qlm.domain.view import ClusterView
from qlm.gateway.forecast import Asked, Expected, Outlook, shortfall
from qlm.gateway.limits import GatewayLimits

RETRY_UNKNOWN_S: Final = 5.0
"""Retry-After while nothing is forecast and no request has been seen to finish."""

RETRY_MIN_S: Final = 1.0
"""Shortest Retry-After, unless an operator allows less at most (`retry_after_max_s`)."""

ROOM_SHARE: Final = 0.02
"""A refused client is told to come back when this share of the limit is free again: if all came back
for the first free place, nearly all would be refused again."""

RATE_MEMORY_S: Final = 30.0
"""Over how long the rate of finished requests is smoothed."""


@value
class Load:
    """What admission knows of the cluster.

    Attributes:
        at_ns: When it was looked at; None before the first look.
        waiting: Waiting requests.
        waiting_by_class: The same, by class.
        waiting_prompt_tokens: Their prompt tokens, from each class's mean.
        finished: Answers finished so far, by class.
        finished_per_s: Smoothed rate of finished answers; None until two looks were taken.
        live_models: Models that a live instance, not draining, is able to serve.
        accepted_since: Requests accepted here since the look.
    """

    at_ns: int | None = None
    waiting: int = 0
    waiting_by_class: Mapping[RequestClass, int] = field(default_factory=dict)
    waiting_prompt_tokens: float = 0.0
    finished: Mapping[RequestClass, int] = field(default_factory=dict)
    finished_per_s: float | None = None
    live_models: frozenset[ModelId] = frozenset()
    accepted_since: int = 0


@dataclass(frozen=True, slots=True)
class Admit:
    """Take it in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Do not take it in.

    Attributes:
        status: 429 if there is too much work, 503 if nothing can do it.
        reason: A word for programs and metrics.
        message: What was exceeded, and by what.
        retry_after_s: When to come back; None if that cannot help.
    """

    status: int
    reason: str
    message: str
    retry_after_s: float | None


def decide(
    load: Load,
    limits: GatewayLimits,
    cls: RequestClass,
    prompt_tokens: int,
    outlook: Outlook | None = None,
    wish: Asked | None = None,
) -> Admit | Refuse:
    """Decide on one request.

    Args:
        load: The latest look at the cluster.
        limits: Of the gateway.
        cls: Its class.
        prompt_tokens: Its prompt.
        outlook: The controller's forecast as of now; None if there is none.
        wish: What it asks of the forecast; None for nothing.
    """
    if limits.refuse_without_instance and load.at_ns is not None and cls.model not in load.live_models:
        message = f"no live instance can serve the model {cls.model}"
        return Refuse(
            status=503,
            reason="no_instance",
            message=message,
            retry_after_s=min(RETRY_UNKNOWN_S, limits.retry_after_max_s),
        )
    waiting = load.waiting + load.accepted_since
    if waiting >= limits.queue_depth_max:
        excess = waiting - (1 - ROOM_SHARE) * limits.queue_depth_max
        return _full(load, limits, outlook, "queue_full", f"{waiting} requests wait", excess)
    in_class = sum(load.waiting_by_class.get(each, 0) for each in (cls, cls.missed()))
    if limits.class_depth_max is not None and in_class >= limits.class_depth_max:
        what = f"{in_class} requests of class {cls.queue} wait, late ones included"
        excess = in_class - (1 - ROOM_SHARE) * limits.class_depth_max
        return _full(load, limits, outlook, "class_full", what, excess, cls)
    tokens_max = limits.queue_prompt_tokens_max
    if tokens_max is not None and load.waiting_prompt_tokens + prompt_tokens > tokens_max:
        what = f"prompts of {load.waiting_prompt_tokens:.0f} tokens wait"
        over = load.waiting_prompt_tokens + prompt_tokens - (1 - ROOM_SHARE) * tokens_max
        excess = waiting * min(1.0, over / max(1.0, load.waiting_prompt_tokens))
        return _full(load, limits, outlook, "queue_tokens_full", what, excess)
    if outlook is not None and wish is not None:
        expected = outlook.expected(cls, wish.max_tokens)
        return Admit() if expected is None else _as_wished(expected, wish, limits)
    return Admit()


def _as_wished(expected: Expected, wish: Asked, limits: GatewayLimits) -> Admit | Refuse:
    """Refuse what would be late, if it asks for that."""
    if (missing := shortfall(expected, wish)) is None:
        return Admit()
    what = "first token" if wish.first_token else "end of the answer"
    message = (
        f"the objective is forecast to be met with probability {missing.p_met:.2g}, expected at least "
        f"{wish.p_met_min:g} (p_met_min): the {what} would come in {missing.comes_s:.1f} s, "
        f"the objective is {wish.target_s:g} s"
    )
    if missing.retry_s is None:
        message += "; on an idle cluster, too, it would come too late"
        return Refuse(status=429, reason="objective_unreachable", message=message, retry_after_s=None)
    retry_s = _bounded(missing.retry_s, limits)
    return Refuse(status=429, reason="objective_unreachable", message=message, retry_after_s=retry_s)


def _full(
    load: Load,
    limits: GatewayLimits,
    outlook: Outlook | None,
    reason: str,
    what: str,
    excess: float,
    cls: RequestClass | None = None,
) -> Refuse:
    message = f"{what}; this cluster accepts more only below its limit ({reason})"
    excess = max(1.0, excess)
    room_s = None if outlook is None else outlook.room_s(excess, cls)
    retry_s = retry_after_s(load, limits, excess) if room_s is None else _bounded(room_s, limits)
    return Refuse(status=429, reason=reason, message=message, retry_after_s=retry_s)


def retry_after_s(load: Load, limits: GatewayLimits, excess: float) -> float:
    """Without a forecast, tell when so many requests will be gone at the rate at which they finish."""
    if not load.finished_per_s:
        return min(RETRY_UNKNOWN_S, limits.retry_after_max_s)
    return _bounded(excess / load.finished_per_s, limits)


def _bounded(seconds: float, limits: GatewayLimits) -> float:
    return min(limits.retry_after_max_s, max(RETRY_MIN_S, seconds))


def observe(before: Load, view: ClusterView, now_ns: int) -> Load:
    """Take a new look at the cluster.

    Args:
        before: The former look; its rate is carried on.
        view: What the store says now.
        now_ns: The present.

    Returns:
        The new look.
    """
    finished = {each.cls: each.finished for each in view.classes}
    return Load(
        at_ns=now_ns,
        waiting=sum(each.queued for each in view.classes),
        waiting_by_class={each.cls: each.queued for each in view.classes},
        waiting_prompt_tokens=sum(each.queued * each.mean_prompt_tokens for each in view.classes),
        finished=finished,
        finished_per_s=_rate(before, finished, now_ns),
        live_models=frozenset(m for each in view.instances if not each.draining for m in each.models),
    )


def accepted(load: Load) -> Load:
    """Count a request accepted here since the look."""
    return Load(
        at_ns=load.at_ns,
        waiting=load.waiting,
        waiting_by_class=load.waiting_by_class,
        waiting_prompt_tokens=load.waiting_prompt_tokens,
        finished=load.finished,
        finished_per_s=load.finished_per_s,
        live_models=load.live_models,
        accepted_since=load.accepted_since + 1,
    )


def _rate(before: Load, finished: Mapping[RequestClass, int], now_ns: int) -> float | None:
    if before.at_ns is None or now_ns <= before.at_ns:
        return before.finished_per_s
    seconds = (now_ns - before.at_ns) / 1e9
    # Classes come and go in the view; only one seen twice says how many finished in between.
    grown = sum(
        max(0, count - before.finished[cls]) for cls, count in finished.items() if cls in before.finished
    )
    rate = grown / seconds
    if before.finished_per_s is None:
        return rate
    weight = min(1.0, seconds / RATE_MEMORY_S)
    return before.finished_per_s + weight * (rate - before.finished_per_s)
