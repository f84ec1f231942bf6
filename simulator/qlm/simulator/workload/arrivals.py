"""Generators of arrival times. `load` multiplies every rate; each draws from the generator it is given."""

import math
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from qlm.domain.errors import InvalidValueError
from qlm.simulator.scenario import IntArray

FloatArray = npt.NDArray[np.float64]

REQUESTS_MAX: Final = 9_999_999
"""Requests of a workload at most, over all its streams: their ids have seven digits."""

ARRIVAL_MAX_S: Final = 315_360_000.0
"""Latest arrival, ten years after the start."""

_RATE_MIN_RPS: Final = 1e-300
"""Lower rates count as this one, whose inverse is still finite; nothing of it comes in time anyway."""


class Arrivals(Protocol):
    """A way in which requests come."""

    def times_s(self, rng: np.random.Generator, load: float) -> FloatArray:
        """Draw the times of arrival in seconds, never falling, shape (requests,).

        They may be later than ARRIVAL_MAX_S, even infinite; `nanoseconds` refuses those.

        Raises:
            InvalidValueError: They are more than REQUESTS_MAX.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How long a generator goes on: for so many requests, or for so long; exactly one is given.

    Attributes:
        requests: Number of requests.
        duration_s: Seconds; requests of this time only.
        start_s: Seconds before it begins.
    """

    requests: int | None = None
    duration_s: float | None = None
    start_s: float = 0.0

    def __post_init__(self) -> None:
        if (self.requests is None) == (self.duration_s is None):
            shown = f"requests {self.requests} and duration_s {self.duration_s}"
            raise InvalidValueError("extent", shown, "exactly one of requests and duration_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """Independent arrivals at a constant rate, requests per second."""

    rate_rps: float
    extent: Extent

    def times_s(self, rng: np.random.Generator, load: float) -> FloatArray:
        """Draw the times of arrival."""
        return self.extent.start_s + _poisson(rng, _rate(self.rate_rps, load), self.extent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gamma:
    """Gaps from a gamma distribution; a coefficient of variation `cv` above 1 is burstier than Poisson."""

    rate_rps: float
    cv: float
    extent: Extent

    def times_s(self, rng: np.random.Generator, load: float) -> FloatArray:
        """Draw the times of arrival; the first comes after one gap."""
        rate, variance = _rate(self.rate_rps, load), self.cv**2
        if self.extent.requests is not None:
            gaps = rng.gamma(1 / variance, variance / rate, _checked(self.extent.requests))
            return np.asarray(self.extent.start_s + np.cumsum(gaps))
        duration_s = self.extent.duration_s or 0.0
        expected = duration_s * rate
        size = _checked(expected + 4 * self.cv * math.sqrt(expected) + 16)
        parts, end_s = [], 0.0
        while end_s <= duration_s:
            parts.append(end_s + np.cumsum(rng.gamma(1 / variance, variance / rate, size)))
            end_s = float(parts[-1][-1])
        times = np.concatenate(parts)
        return np.asarray(self.extent.start_s + times[times < duration_s])


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursts:
    """All at once: `count` requests at `start_s`, and again every `every_s` seconds, `bursts` times.

    Load brings the bursts closer together; it does not change a single one.
    """

    count: int
    every_s: float = 0.0
    bursts: int = 1
    start_s: float = 0.0

    def times_s(self, rng: np.random.Generator, load: float) -> FloatArray:
        """Return the times of arrival; nothing is drawn."""
        _checked(self.count * self.bursts)
        return np.repeat(self.start_s + np.arange(self.bursts) * (self.every_s / load), self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnOff:
    """Poisson arrivals at `rate_rps` for `on_s` seconds, nothing for `off_s`, and so on."""

    rate_rps: float
    on_s: float
    off_s: float
    extent: Extent

    def times_s(self, rng: np.random.Generator, load: float) -> FloatArray:
        """Draw the times of arrival: on a clock that stands still while nothing comes."""
        extent, period_s = self.extent, self.on_s + self.off_s
        if extent.duration_s is not None:
            whole, rest_s = divmod(extent.duration_s, period_s)
            extent = Extent(duration_s=whole * self.on_s + min(rest_s, self.on_s))
        on_clock_s = _poisson(rng, _rate(self.rate_rps, load), extent)
        return self.extent.start_s + on_clock_s + np.floor(on_clock_s / self.on_s) * self.off_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """Poisson arrivals whose rate goes linearly from `from_rps` to `to_rps` in `duration_s` seconds."""

    from_rps: float
    to_rps: float
    duration_s: float
    start_s: float = 0.0

    def times_s(self, rng: np.random.Generator, load: float) -> FloatArray:
        """Draw the times of arrival: even on the scale of expected requests, then turned into time."""
        low, high = self.from_rps * load, self.to_rps * load
        expected = (low + high) / 2 * self.duration_s
        passed = np.sort(rng.random(rng.poisson(_checked(expected) and expected))) * expected
        root = np.sqrt(low**2 + 2 * (high - low) / self.duration_s * passed)
        # The other form of the root of a quadratic equation: exact for equal rates, too.
        return np.asarray(self.start_s + 2 * passed / np.maximum(low + root, 1e-300))


def nanoseconds(times_s: FloatArray) -> IntArray:
    """Round times in seconds, which never fall, to nanoseconds, shape (requests,).

    Raises:
        InvalidValueError: One is later than ARRIVAL_MAX_S, or no number.
    """
    late_s = times_s[~(times_s <= ARRIVAL_MAX_S)]
    if len(late_s):
        shown = f"a request at {late_s[0]:g} s"
        raise InvalidValueError("arrivals", shown, f"none after {ARRIVAL_MAX_S:.0f} s (ten years)")
    return np.rint(times_s * 1e9).astype(np.int64)


def check_requests(field: str, requests: float) -> None:
    """Refuse more requests than a workload can have.

    Raises:
        InvalidValueError: They are too many; names the field.
    """
    if requests > REQUESTS_MAX:
        raise InvalidValueError(field, f"{requests:.0f} requests", f"at most {REQUESTS_MAX} in all")


def _rate(rate_rps: float, load: float) -> float:
    return max(rate_rps * load, _RATE_MIN_RPS)


def _poisson(rng: np.random.Generator, rate_rps: float, extent: Extent) -> FloatArray:
    if extent.requests is not None:
        return np.cumsum(rng.exponential(1 / rate_rps, _checked(extent.requests)))
    duration_s = extent.duration_s or 0.0
    _checked(rate_rps * duration_s)
    return np.sort(rng.random(rng.poisson(rate_rps * duration_s))) * duration_s


def _checked(requests: float) -> int:
    check_requests("arrivals", requests)
    return math.ceil(requests)
