"""Generators of arrival times; `load` multiplies every rate."""

import math
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from qlm.domain.errors import InvalidValueError
from qlm.simulator.scenario import IntArray

FloatArray = npt.NDArray[np.float64]

REQUESTS_MAX: Final = 9_999_999
"""Most requests of a workload, over all its streams: their ids have seven digits."""

ARRIVAL_MAX_S: Final = 315_360_000.0
"""Latest arrival, ten years after the start."""

_RATE_MIN_RPS: Final = 1e-300
"""Lowest rate, whose inverse is still finite; no request of such a rate arrives in time anyway."""


class Arrivals(Protocol):
    """Arrival process."""

    def times_s(self, rng: np.random.Generator, load: float) -> FloatArray:
        """Draw arrival times in seconds, never decreasing, shape (requests,).

        They may be later than ARRIVAL_MAX_S, or infinite; `nanoseconds` refuses those.

        Raises:
            InvalidValueError: There are more than REQUESTS_MAX.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalSpan:
    """Length of an arrival process: a number of requests or a duration, exactly one of them.

    Attributes:
        start_s: Time of its start.
    """

    requests: int | None = None
    duration_s: float | None = None
    start_s: float = 0.0

    def __post_init__(self) -> None:
        if (self.requests is None) == (self.duration_s is None):
            shown = f"requests {self.requests} and duration_s {self.duration_s}"
            raise InvalidValueError("span", shown, "exactly one of requests and duration_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """Poisson arrivals at a constant rate, requests per second."""

    rate_rps: float
    span: ArrivalSpan

    def times_s(self, rng: np.random.Generator, load: float) -> FloatArray:
        """Draw arrival times."""
        return self.span.start_s + _poisson(rng, _rate(self.rate_rps, load), self.span)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gamma:
    """Arrivals with gamma-distributed gaps; `cv`, their coefficient of variation, is 1 for Poisson."""

    rate_rps: float
    cv: float
    span: ArrivalSpan

    def times_s(self, rng: np.random.Generator, load: float) -> FloatArray:
        """Draw arrival times; the first comes after one gap."""
        rate, variance = _rate(self.rate_rps, load), self.cv**2
        if self.span.requests is not None:
            gaps = rng.gamma(1 / variance, variance / rate, _checked(self.span.requests))
            return np.asarray(self.span.start_s + np.cumsum(gaps))
        duration_s = self.span.duration_s or 0.0
        expected = duration_s * rate
        size = _checked(expected + 4 * self.cv * math.sqrt(expected) + 16)
        parts, end_s = [], 0.0
        while end_s <= duration_s:
            parts.append(end_s + np.cumsum(rng.gamma(1 / variance, variance / rate, size)))
            end_s = float(parts[-1][-1])
        times = np.concatenate(parts)
        return np.asarray(self.span.start_s + times[times < duration_s])


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursts:
    """Bursts of `count` requests, from `start_s` on every `every_s` seconds, `bursts` times.

    Load shortens the time between bursts; it does not change their size.
    """

    count: int
    every_s: float = 0.0
    bursts: int = 1
    start_s: float = 0.0

    def times_s(self, rng: np.random.Generator, load: float) -> FloatArray:
        """Return arrival times; nothing is drawn."""
        _checked(self.count * self.bursts)
        return np.repeat(self.start_s + np.arange(self.bursts) * (self.every_s / load), self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnOff:
    """Poisson arrivals at `rate_rps` for `on_s` seconds, then none for `off_s` seconds, repeatedly."""

    rate_rps: float
    on_s: float
    off_s: float
    span: ArrivalSpan

    def times_s(self, rng: np.random.Generator, load: float) -> FloatArray:
        """Draw arrival times on a clock that stops during the pauses."""
        span, period_s = self.span, self.on_s + self.off_s
        if span.duration_s is not None:
            whole, rest_s = divmod(span.duration_s, period_s)
            span = ArrivalSpan(duration_s=whole * self.on_s + min(rest_s, self.on_s))
        on_clock_s = _poisson(rng, _rate(self.rate_rps, load), span)
        return self.span.start_s + on_clock_s + np.floor(on_clock_s / self.on_s) * self.off_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """Poisson arrivals whose rate changes linearly from `from_rps` to `to_rps` in `duration_s` seconds."""

    from_rps: float
    to_rps: float
    duration_s: float
    start_s: float = 0.0

    def times_s(self, rng: np.random.Generator, load: float) -> FloatArray:
        """Draw arrivals uniformly on the scale of expected requests, then map them to times."""
        low, high = self.from_rps * load, self.to_rps * load
        expected = (low + high) / 2 * self.duration_s
        passed = np.sort(rng.random(rng.poisson(_checked(expected) and expected))) * expected
        root = np.sqrt(low**2 + 2 * (high - low) / self.duration_s * passed)
        # This form of the root of the quadratic equation is exact for equal rates, too.
        return np.asarray(self.start_s + 2 * passed / np.maximum(low + root, 1e-300))


def nanoseconds(times_s: FloatArray) -> IntArray:
    """Round never decreasing times in seconds to nanoseconds, shape (requests,).

    Raises:
        InvalidValueError: One is later than ARRIVAL_MAX_S, or no number.
    """
    late_s = times_s[~(times_s <= ARRIVAL_MAX_S)]
    if len(late_s):
        shown = f"a request at {late_s[0]:g} s"
        raise InvalidValueError("arrivals", shown, f"none after {ARRIVAL_MAX_S:.0f} s (ten years)")
    return np.rint(times_s * 1e9).astype(np.int64)


def check_requests(field: str, requests: float) -> None:
    """Raise an error if a workload has too many requests.

    Raises:
        InvalidValueError: There are more than REQUESTS_MAX; names the field.
    """
    if requests > REQUESTS_MAX:
        raise InvalidValueError(field, f"{requests:.0f} requests", f"at most {REQUESTS_MAX} in all")


def _rate(rate_rps: float, load: float) -> float:
    return max(rate_rps * load, _RATE_MIN_RPS)


def _poisson(rng: np.random.Generator, rate_rps: float, span: ArrivalSpan) -> FloatArray:
    if span.requests is not None:
        return np.cumsum(rng.exponential(1 / rate_rps, _checked(span.requests)))
    duration_s = span.duration_s or 0.0
    _checked(rate_rps * duration_s)
    return np.sort(rng.random(rng.poisson(rate_rps * duration_s))) * duration_s


def _checked(requests: float) -> int:
    check_requests("arrivals", requests)
    return math.ceil(requests)
