"""Admission control: decides on 429 and 503, and on Retry-After, from the latest load and forecast."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from qlm.domain.group import RequestClass
from qlm.domain.ids import ModelId
from qlm.domain.values import value
from qlm.domain.view import ClusterView
from qlm.gateway.core.forecast import AdmissionQuery, CurrentForecast, ExpectedTimes, shortfall
from qlm.gateway.core.limits import GatewayLimits

RETRY_UNKNOWN_S: Final = 5.0
"""Retry-After without a forecast and before any request has finished."""

RETRY_MIN_S: Final = 1.0
"""Shortest Retry-After."""

FREE_SHARE: Final = 0.02
"""Share of the limit that is free again after Retry-After. If all refused clients came back for the first
free place, nearly all would be refused again."""

RATE_MEMORY_S: Final = 30.0
"""Time constant of the smoothed rate of finished requests."""


@value
class Load:
    """The load of the cluster, as admission needs it.

    Attributes:
        at_ns: Time of the observation; None before the first.
        waiting: Waiting requests.
        waiting_by_class: Waiting requests, by class.
        waiting_prompt_tokens: Their prompt tokens, from each class's mean.
        finished: Answers finished so far, by class.
        finished_per_s: Smoothed rate of finished answers; None before the second observation.
        live_models: Models that a live instance that is not draining can serve.
        accepted_since: Requests accepted here since the observation.
        accepted_by_class: The same, by class.
        accepted_prompt_tokens: Their prompt tokens.
    """

    at_ns: int | None = None
    waiting: int = 0
    waiting_by_class: Mapping[RequestClass, int] = field(default_factory=dict)
    waiting_prompt_tokens: float = 0.0
    finished: Mapping[RequestClass, int] = field(default_factory=dict)
    finished_per_s: float | None = None
    live_models: frozenset[ModelId] = frozenset()
    accepted_since: int = 0
    accepted_by_class: Mapping[RequestClass, int] = field(default_factory=dict)
    accepted_prompt_tokens: int = 0

    def in_class(self, cls: RequestClass) -> int:
        """Return the waiting requests of a class, with those accepted since; late ones included."""
        return sum(
            counts.get(each, 0)
            for counts in (self.waiting_by_class, self.accepted_by_class)
            for each in {cls, cls.missed()}
        )


@dataclass(frozen=True, slots=True)
class Admit:
    """Accept the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Refuse the request.

    Attributes:
        status: 429 if there is too much work, 503 if no instance can serve it, 400 if no queue could take it.
        reason: A word for programs and metrics.
        message: The limit and the value that exceeds it.
        retry_after_s: Time after which to retry; None if a retry cannot help.
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
    forecast: CurrentForecast | None = None,
    query: AdmissionQuery | None = None,
    requests: int = 1,
) -> Admit | Refuse:
    """Decide on one request, or on a family of requests together.

    Args:
        load: The latest load of the cluster.
        limits: Limits of the gateway.
        cls: Class of the request.
        prompt_tokens: Length of its prompt, or of the prompts of all.
        forecast: The controller's forecast as of now; None without one.
        query: Its objective and required probability; None to skip that check.
        requests: Number of requests.
    """
    if (refusal := _too_large(limits, requests, prompt_tokens)) is not None:
        return refusal
    if limits.refuse_without_instance and load.at_ns is not None and cls.model not in load.live_models:
        message = f"no live instance can serve the model {cls.model}"
        return Refuse(
            status=503,
            reason="no_instance",
            message=message,
            retry_after_s=min(RETRY_UNKNOWN_S, limits.retry_after_max_s),
        )
    if (refusal := _no_room(load, limits, cls, prompt_tokens, forecast, requests)) is not None:
        return refusal
    if forecast is not None and query is not None and query.wants_promise:
        expected = forecast.expected(cls, query.max_tokens)
        return Admit() if expected is None else _check_objective(expected, query, limits)
    return Admit()


def _no_room(
    load: Load,
    limits: GatewayLimits,
    cls: RequestClass,
    prompt_tokens: int,
    forecast: CurrentForecast | None,
    requests: int,
) -> Refuse | None:
    """Refuse for now what exceeds a limit of the queue together with what waits."""
    waiting, most = load.waiting + load.accepted_since, limits.queue_depth_max
    if waiting + requests > most:
        room, excess = _room("queue_depth_max", most, requests), _excess(waiting, requests, most)
        return _full(load, limits, forecast, "queue_full", f"{waiting} requests wait", room, excess)
    if limits.class_depth_max is not None:
        in_class, most = load.in_class(cls), limits.class_depth_max
        if in_class + requests > most:
            what = f"{in_class} requests of class {cls.queue} wait, late ones included"
            room, excess = _room("class_depth_max", most, requests), _excess(in_class, requests, most)
            return _full(load, limits, forecast, "class_full", what, room, excess, cls)
    tokens_max = limits.queue_prompt_tokens_max
    waiting_tokens = load.waiting_prompt_tokens + load.accepted_prompt_tokens
    if tokens_max is not None and waiting_tokens + prompt_tokens > tokens_max:
        what = f"prompts of {waiting_tokens:.0f} tokens wait"
        room = _room("queue_prompt_tokens_max", tokens_max, prompt_tokens, "prompt tokens")
        over = waiting_tokens + prompt_tokens - (1 - FREE_SHARE) * tokens_max
        excess = waiting * min(1.0, over / max(1.0, waiting_tokens))
        return _full(load, limits, forecast, "queue_tokens_full", what, room, excess)
    return None


def _room(limit: str, most: int, asked: int, of: str = "answers") -> str:
    """Return what a limit leaves: what asks for less than this call may be accepted before it."""
    if asked == 1:
        return f"this cluster accepts more only below its limit of {most} (limits.{limit})"
    return f"this call asks for {asked} {of}, expected at most {most} with those that wait (limits.{limit})"


def _excess(waiting: int, requests: int, most: int) -> float:
    """Return the requests that have to leave before these are accepted."""
    return max(waiting - (1 - FREE_SHARE) * most, waiting + requests - most)


def _too_large(limits: GatewayLimits, requests: int, prompt_tokens: int) -> Refuse | None:
    """Refuse for good a request, or a family, that does not fit into an empty queue."""
    tokens_max = limits.queue_prompt_tokens_max
    if tokens_max is not None and prompt_tokens > tokens_max:
        what = "the prompt has" if requests == 1 else f"the prompts of {requests} answers have"
        message = (
            f"{what} {prompt_tokens} tokens; expected at most {tokens_max} (limits.queue_prompt_tokens_max)"
        )
        return Refuse(status=400, reason="request_too_large", message=message, retry_after_s=None)
    for name in ("queue_depth_max", "class_depth_max"):
        most = getattr(limits, name)
        if most is not None and requests > max(1, most):
            message = f"{requests} answers are asked for; expected at most {most} (limits.{name})"
            return Refuse(status=400, reason="request_too_large", message=message, retry_after_s=None)
    return None


def overload(late_s: float, limits: GatewayLimits) -> Refuse | None:
    """Decide on all requests that come while this process has too little processor.

    Args:
        late_s: Mean lateness of its timers.
        limits: Limits of the gateway.
    """
    if late_s <= limits.late_max_s:
        return None
    message = (
        f"this gateway has too little processor: its timers are {late_s:.2g} s late, expected at most "
        f"{limits.late_max_s:g} s (limits.late_max_s); try another gateway, or later"
    )
    retry_s = min(RETRY_UNKNOWN_S, limits.retry_after_max_s)
    return Refuse(status=503, reason="overloaded", message=message, retry_after_s=retry_s)


def _check_objective(expected: ExpectedTimes, query: AdmissionQuery, limits: GatewayLimits) -> Admit | Refuse:
    """Refuse a request whose objective is less likely to be met than required."""
    if (missing := shortfall(expected, query)) is None:
        return Admit()
    message = (
        f"the objective is forecast to be met with probability {missing.p_met:.2g}, expected at least "
        f"{query.p_met_min:g} (p_met_min): {missing.why}"
    )
    if missing.retry_s is None:
        message += "; it would be too late on an idle cluster, too"
        return Refuse(status=429, reason="objective_unreachable", message=message, retry_after_s=None)
    retry_s = _bounded(missing.retry_s, limits)
    return Refuse(status=429, reason="objective_unreachable", message=message, retry_after_s=retry_s)


def _full(
    load: Load,
    limits: GatewayLimits,
    forecast: CurrentForecast | None,
    reason: str,
    what: str,
    room: str,
    excess: float,
    cls: RequestClass | None = None,
) -> Refuse:
    message = f"{what}; {room}"
    excess = max(1.0, excess)
    departure_s = None if forecast is None else forecast.departure_s(excess, cls)
    retry_s = retry_after_s(load, limits, excess) if departure_s is None else _bounded(departure_s, limits)
    return Refuse(status=429, reason=reason, message=message, retry_after_s=retry_s)


def retry_after_s(load: Load, limits: GatewayLimits, excess: float) -> float:
    """Return the Retry-After without a forecast: the excess over the recent rate of finished requests."""
    if not load.finished_per_s:
        return min(RETRY_UNKNOWN_S, limits.retry_after_max_s)
    return _bounded(excess / load.finished_per_s, limits)


def _bounded(seconds: float, limits: GatewayLimits) -> float:
    return min(limits.retry_after_max_s, max(RETRY_MIN_S, seconds))


def observe(before: Load, view: ClusterView, now_ns: int) -> Load:
    """Return the load of a new view of the cluster; the smoothed rate continues from `before`."""
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
    """Return the load with one more request accepted since the observation."""
    return replace(load, accepted_since=load.accepted_since + 1)


def _rate(before: Load, finished: Mapping[RequestClass, int], now_ns: int) -> float | None:
    if before.at_ns is None or now_ns <= before.at_ns:
        return before.finished_per_s
    seconds = (now_ns - before.at_ns) / 1e9
    # Classes appear in the view and vanish from it; only one seen twice shows how many finished in between.
    grown = sum(
        max(0, count - before.finished[cls]) for cls, count in finished.items() if cls in before.finished
    )
    rate = grown / seconds
    if before.finished_per_s is None:
        return rate
    weight = min(1.0, seconds / RATE_MEMORY_S)
    return before.finished_per_s + weight * (rate - before.finished_per_s)
