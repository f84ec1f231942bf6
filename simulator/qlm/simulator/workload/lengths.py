"""Distributions of prompt and answer lengths, in tokens."""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from qlm.domain.errors import InvalidValueError
from qlm.simulator.scenario import IntArray


class Lengths(Protocol):
    """Distribution of lengths."""

    def tokens(self, rng: np.random.Generator, count: int) -> IntArray:
        """Draw lengths of 1 or more tokens, shape (count,)."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """Constant length."""

    value: int

    def tokens(self, rng: np.random.Generator, count: int) -> IntArray:
        """Repeat the length; nothing is drawn."""
        return np.full(count, self.value, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform:
    """Uniform distribution from `low` to `high`, both included."""

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
    """Lognormal distribution, rounded and cut.

    Attributes:
        median: Median before cutting.
        sigma: Standard deviation of the natural logarithm.
        low: Least length; shorter ones are raised to it.
        high: Greatest length; longer ones are cut to it.
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
        """Build from the mean before cutting."""
        return cls(median=mean * math.exp(-(sigma**2) / 2), sigma=sigma, low=low, high=high)

    def tokens(self, rng: np.random.Generator, count: int) -> IntArray:
        """Draw lengths."""
        drawn = rng.lognormal(math.log(self.median), self.sigma, count)
        return np.clip(np.rint(drawn), self.low, self.high).astype(np.int64)
