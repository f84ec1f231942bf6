"""The controller's forecast, applied to a request that arrives now: pure functions of it and its age."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final

from qlm.domain.group import RequestClass
from qlm.domain.ids import ModelId
from qlm.domain.request import RequestMetadata
from qlm.domain.slo import ReadingSlo, TokenSlo
from qlm.planner.admission_signal import AdmissionSignal, ClassForecast
from qlm.rct_estimator.normal import Normal

SIGNAL_OLD_S: Final = 30.0
"""Age at which a forecast is no longer used; a running controller makes one every second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionQuery:
    """The part of a request that its forecast depends on.

    Attributes:
        target_s: Time to its objective; None without one.
        first_token: The objective is about the first token, not about the end.
        max_tokens: Its output limit.
        p_met_min: Required probability of meeting the objective; 0 for any.
        deadline_s: Time to the deadline of the whole answer, beside an objective about the first token.
    """

    target_s: float | None
    first_token: bool
    max_tokens: int
    p_met_min: float
    deadline_s: float | None = None

    @property
    def wants_promise(self) -> bool:
        """True if any forecast may fall short of it."""
        return self.target_s is not None and self.p_met_min > 0


def admission_query(metadata: RequestMetadata) -> AdmissionQuery:
    """Return the query for a request."""
    slo, extensions = metadata.slo, metadata.extensions
    return AdmissionQuery(
        target_s=None if slo.target_ms is None else slo.target_ms / 1000,
        first_token=isinstance(slo, TokenSlo | ReadingSlo),
        max_tokens=metadata.sampling.max_tokens,
        p_met_min=extensions.p_met or 0.0,
        deadline_s=None if extensions.deadline_ms is None else extensions.deadline_ms / 1000,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedTimes:
    """The forecast for one request, in seconds from now.

    Attributes:
        wait: Until it leaves the queue.
        first_token: Until its first token.
        completion: Until its end.
        alone_first_token: Until its first token on an idle cluster with the model loaded.
        alone_completion: Until its end on an idle cluster with the model loaded.
        token_s: Time per output token.
    """

    wait: Normal
    first_token: Normal
    completion: Normal
    alone_first_token: Normal
    alone_completion: Normal
    token_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentForecast:
    """The latest forecast, with its age and the arrivals since it was made.

    Attributes:
        signal: The forecast.
        age_s: Its age.
        arrived: Requests accepted here since it was made, by model.
    """

    signal: AdmissionSignal
    age_s: float
    arrived: Mapping[ModelId, int]

    def departure_s(self, requests: float, cls: RequestClass | None = None) -> float | None:
        """Return the seconds until `requests` more requests have left the queue, if nothing else arrives.

        `cls` restricts it to one class. None if no departure is forecast.
        """
        of_class = None if cls is None else self.signal.classes.get(cls)
        curve = of_class.departures if of_class is not None else self.signal.departures
        if (cls is not None and of_class is None) or not curve.gone or curve.gone[-1] <= 0:
            return None
        if (wait_s := curve.wait_s(requests, self.age_s)) is not None:
            return wait_s
        # Beyond the requests that waited when the forecast was made, the queue is assumed to go on at its
        # mean rate.
        end_s, gone = curve.after_s[-1], curve.gone[-1]
        beyond = requests - (gone - curve.gone_at(self.age_s))
        return max(0.0, end_s - self.age_s) + beyond * end_s / gone

    def expected(self, cls: RequestClass, max_tokens: int) -> ExpectedTimes | None:
        """Return the forecast for a request of a class with that output limit; None if there is none."""
        if (of_class := self.signal.classes.get(cls)) is None:
            return None
        # At worst, all arrivals since the forecast are served first; meanwhile the queue has advanced.
        passed_s = min(self.age_s, max(0.0, of_class.wait.mean))
        delay = Normal(of_class.each_s * self.arrived.get(cls.model, 0) - passed_s)
        completion = _capped(of_class, max_tokens)
        return ExpectedTimes(
            wait=of_class.wait + delay,
            first_token=of_class.first_token + delay,
            completion=completion + delay,
            alone_first_token=of_class.alone_first_token,
            alone_completion=_capped_alone(of_class, max_tokens),
            token_s=of_class.token_s,
        )


def current_forecast(
    signal: AdmissionSignal | None, arrived: Mapping[ModelId, int], now_ns: int
) -> CurrentForecast | None:
    """Return a forecast as of now; None if there is none, or if it is older than `SIGNAL_OLD_S`."""
    if signal is None:
        return None
    age_s = now_ns / 1e9 - signal.at_ms / 1000
    if abs(age_s) > SIGNAL_OLD_S:
        return None
    # Clocks of two machines differ: a forecast from the near future counts as made now.
    return CurrentForecast(signal=signal, age_s=max(0.0, age_s), arrived=arrived)


def _capped(of_class: ClassForecast, max_tokens: int) -> Normal:
    """Return the end of an answer of at most `max_tokens` tokens."""
    first, end, longest_s = of_class.first_token, of_class.completion, (max_tokens - 1) * of_class.token_s
    return first + Normal(longest_s) if first.mean + longest_s < end.mean else end


def _capped_alone(of_class: ClassForecast, max_tokens: int) -> Normal:
    """Return the end of such an answer on an idle cluster, where tokens take less than `token_s`.

    The limit ends it at the same share of its tokens as in the present batch.
    """
    first, end = of_class.alone_first_token, of_class.alone_completion
    answer_s = of_class.completion.mean - of_class.first_token.mean
    longest_s = (max_tokens - 1) * of_class.token_s
    return first + Normal((end.mean - first.mean) * longest_s / answer_s) if longest_s < answer_s else end


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """An objective whose forecast probability is below the required one.

    Attributes:
        p_met: Forecast probability of meeting it.
        why: What comes when, and what the objective is, for the client.
        retry_s: Time after which a new request would meet the requirement, if nothing else arrives. None if
            even an idle cluster would be too slow.
    """

    p_met: float
    why: str
    retry_s: float | None


def shortfall(expected: ExpectedTimes, query: AdmissionQuery) -> Shortfall | None:
    """Return the shortfall of a forecast against the required probability; None if there is none.

    Of several objectives the least likely one is named; the time to retry is that at which all are met.
    """
    if not query.wants_promise:
        return None
    found = [each for each in _shortfalls(expected, query) if each.p_met < query.p_met_min]
    if not found:
        return None
    retries_s = [each.retry_s for each in found if each.retry_s is not None]
    retry_s = max(retries_s) if len(retries_s) == len(found) else None
    return replace(min(found, key=lambda each: each.p_met), retry_s=retry_s)


def _shortfalls(expected: ExpectedTimes, query: AdmissionQuery) -> Iterator[Shortfall]:
    """Yield each objective of a request as it is forecast."""
    assert query.target_s is not None
    end = ("end of the answer", expected.completion, expected.alone_completion)
    if not query.first_token:
        yield _judged(*end, expected.wait, query.p_met_min, query.target_s)
        return
    first = ("first token", expected.first_token, expected.alone_first_token)
    yield _judged(*first, expected.wait, query.p_met_min, query.target_s)
    if query.deadline_s is not None:
        yield _judged(*end, expected.wait, query.p_met_min, query.deadline_s)


def _judged(
    what: str, comes: Normal, alone: Normal, wait: Normal, p_met_min: float, target_s: float
) -> Shortfall:
    """Judge what comes by now, and on an idle cluster, by a target."""
    retry_s = None
    if alone.at_most(target_s) >= p_met_min:
        # As time passes the wait gets shorter, and the mean with it.
        margin_s = NormalDist().inv_cdf(p_met_min) * math.sqrt(comes.var)
        retry_s = min(comes.mean + margin_s - target_s, max(0.0, wait.mean))
    why = f"the {what} would come in {comes.mean:.1f} s, the objective is {target_s:g} s"
    return Shortfall(p_met=comes.at_most(target_s), why=why, retry_s=retry_s)
