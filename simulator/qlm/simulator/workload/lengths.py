"""Distributions of prompt and answer lengths, in whole tokens."""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from qlm.domain.errors import InvalidValueError
from qlm.simulator.scenario import IntArray


class Lengths(Protocol):
    """A distribution of lengths."""

    def tokens(self, rng: np.random.Generator, count: int) -> IntArray:
        """Draw lengths of 1 or more tokens, shape (count,)."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """Always the same."""

    value: int

    def tokens(self, rng: np.random.Generator, count: int) -> IntArray:
        """Repeat the length; nothing is drawn."""
        return np.full(count, self.value, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform:
    """Each from `low` to `high`, both included, as likely as any other."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high:
            raise InvalidValueError("uniform", [self.low, self.high], "1 <= low <= high")

    def tokens(self, rng: np.random.Generator, count: int) -> IntArray:
        """Draw lengths."""
        return rng.integers(self.low, self.high, count, endpoint=True, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormal:
    """Logarithms are normal with standard deviation `sigma`.

    Attributes:
        median: Median length.
        sigma: Standard deviation of the natural logarithm.
        low: Shorter ones are raised to it.
        high: Longer ones are cut to it; the median is that before cutting.
    """

    median: float
    sigma: float
    low: int = 1
    high: int = 1_000_000

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high:
            raise InvalidValueError("lognormal", [self.low, self.high], "1 <= low <= high")

    @classmethod
    def of_mean(cls, mean: float, sigma: float, low: int, high: int) -> "LogNormal":
        """Make the one with a mean, before cutting."""
        return cls(median=mean * math.exp(-(sigma**2) / 2), sigma=sigma, low=low, high=high)

    def tokens(self, rng: np.random.Generator, count: int) -> IntArray:
        """Draw lengths."""
        drawn = rng.lognormal(math.log(self.median), self.sigma, count)
        return np.clip(np.rint(drawn), self.low, self.high).astype(np.int64)
