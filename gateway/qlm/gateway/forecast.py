"""What the controller's forecast says of a request that arrives now: pure functions of it and its age."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

from qlm.domain.group import RequestClass
from qlm.domain.ids import ModelId
from qlm.domain.request import RequestCard
from qlm.domain.slo import ReadingSlo, TokenSlo
from qlm.planner.admission_signal import AdmissionSignal, ClassForecast
from qlm.rct_estimator.normal import Normal

SIGNAL_OLD_S: Final = 30.0
"""A forecast that is older says nothing: a controller that runs makes one every second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a request asks, as far as the forecast can tell.

    Attributes:
        target_s: Time to its objective; None if it has none.
        first_token: The objective is about the first token, not about the end.
        max_tokens: Its output limit.
        p_met_min: With which probability it wants its objective met at least; 0 for any.
    """

    target_s: float | None
    first_token: bool
    max_tokens: int
    p_met_min: float


def asked(card: RequestCard, p_met_min: float | None) -> Asked:
    """Read it off a request.

    Args:
        card: The request.
        p_met_min: Of the request or of the gateway; None for any.
    """
    target_ms = card.slo.target_ms
    return Asked(
        target_s=None if target_ms is None else target_ms / 1000,
        first_token=isinstance(card.slo, TokenSlo | ReadingSlo),
        max_tokens=card.sampling.max_tokens,
        p_met_min=p_met_min or 0.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What one request can expect, seconds from now.

    Attributes:
        wait: Until it leaves the queue.
        first_token: Until its first token.
        completion: Until its end.
        alone_first_token: The same with no work before it and the model loaded.
        alone_completion: Likewise.
        token_s: Time per output token.
    """

    wait: Normal
    first_token: Normal
    completion: Normal
    alone_first_token: Normal
    alone_completion: Normal
    token_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The latest forecast, and what has happened since it was made.

    Attributes:
        signal: The forecast.
        age_s: How old it is.
        came: Requests accepted here since, by model.
    """

    signal: AdmissionSignal
    age_s: float
    came: Mapping[ModelId, int]

    def room_s(self, requests: float, cls: RequestClass | None = None) -> float | None:
        """Seconds until so many more requests have left the queue, were none to come.

        Args:
            requests: How many.
            cls: Of which class; None for any.

        Returns:
            None if no request is forecast to leave. Beyond what was waiting when the forecast was made, the
            queue is taken to go on at its mean rate.
        """
        told = None if cls is None else self.signal.classes.get(cls)
        drain = told.drain if told is not None else self.signal.drain
        if (cls is not None and told is None) or not drain.gone or drain.gone[-1] <= 0:
            return None
        if (wait_s := drain.wait_s(requests, self.age_s)) is not None:
            return wait_s
        end_s, gone = drain.after_s[-1], drain.gone[-1]
        beyond = requests - (gone - drain.gone_at(self.age_s))
        return max(0.0, end_s - self.age_s) + beyond * end_s / gone

    def expected(self, cls: RequestClass, max_tokens: int) -> Expected | None:
        """What a request of a class with that output limit can expect; None if nothing is known."""
        if (told := self.signal.classes.get(cls)) is None:
            return None
        # What has come since goes first at worst; meanwhile the queue has gone on.
        passed_s = min(self.age_s, max(0.0, told.wait.mean))
        later = Normal(told.each_s * self.came.get(cls.model, 0) - passed_s)
        return Expected(
            wait=told.wait + later,
            first_token=told.first_token + later,
            completion=_cut(told.first_token, told.completion, told, max_tokens) + later,
            alone_first_token=told.alone_first_token,
            alone_completion=_cut(told.alone_first_token, told.alone_completion, told, max_tokens),
            token_s=told.token_s,
        )


def outlook(signal: AdmissionSignal | None, came: Mapping[ModelId, int], now_ns: int) -> Outlook | None:
    """See a forecast from now; None if there is none, or if it is too old to say anything.

    Clocks of two machines may differ: one from the near future counts as made now.
    """
    if signal is None:
        return None
    age_s = now_ns / 1e9 - signal.at_ms / 1000
    if abs(age_s) > SIGNAL_OLD_S:
        return None
    return Outlook(signal=signal, age_s=max(0.0, age_s), came=came)


def _cut(first: Normal, end: Normal, told: ClassForecast, max_tokens: int) -> Normal:
    """The end of an answer that is cut off at `max_tokens`, if that comes before the end expected."""
    longest_s = (max_tokens - 1) * told.token_s
    return first + Normal(longest_s) if first.mean + longest_s < end.mean else end


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """An objective that is forecast to be met with less than the probability asked for.

    Attributes:
        p_met: With which it is.
        comes_s: When the first token, or the end, would come; mean, from now.
        retry_s: When a new request would be forecast to meet it as asked, were nothing else to come; None
            if not even an idle cluster would.
    """

    p_met: float
    comes_s: float
    retry_s: float | None


def shortfall(expected: Expected, wish: Asked) -> Shortfall | None:
    """Tell what is missing to what a request asks for; None if nothing is.

    Args:
        expected: What it can expect.
        wish: What it asks for.
    """
    if wish.target_s is None or wish.p_met_min <= 0:
        return None
    comes = expected.first_token if wish.first_token else expected.completion
    p_met = comes.at_most(wish.target_s)
    if p_met >= wish.p_met_min:
        return None
    alone = expected.alone_first_token if wish.first_token else expected.alone_completion
    retry_s = None
    if alone.at_most(wish.target_s) >= wish.p_met_min:
        # As time goes by the wait gets shorter, and with it the mean.
        margin_s = NormalDist().inv_cdf(wish.p_met_min) * math.sqrt(comes.var)
        retry_s = min(comes.mean + margin_s - wish.target_s, max(0.0, expected.wait.mean))
    return Shortfall(p_met=p_met, comes_s=comes.mean, retry_s=retry_s)
