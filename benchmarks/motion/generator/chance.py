"""Draws with weights, and numbers rounded for a file."""

from collections.abc import Sequence
from math import exp, floor, log, log10
from typing import TypeVar

import numpy as np

T = TypeVar("T")
Rng = np.random.Generator
Ranges = Sequence[tuple[float, int, int]]
"""Weight, least and most."""


def pick(rng: Rng, options: Sequence[tuple[float, T]]) -> T:
    """Draw one of the options, by weight."""
    weights = np.array([weight for weight, _option in options])
    return options[int(rng.choice(len(options), p=weights / weights.sum()))][1]


def whole(rng: Rng, ranges: Ranges) -> int:
    """Draw a range by weight, then a number in it."""
    least, most = pick(rng, [(weight, (least, most)) for weight, least, most in ranges])
    return int(rng.integers(least, most, endpoint=True))


def log_uniform(rng: Rng, least: float, most: float) -> float:
    """Draw a number whose logarithm is uniform."""
    return exp(rng.uniform(log(least), log(most)))


def happens(rng: Rng, probability: float) -> bool:
    """Return True with a probability."""
    return bool(rng.random() < probability)


def rounded(value: float, digits: int = 3) -> float:
    """Round to significant digits, without a fraction where there is none."""
    places = digits - 1 - floor(log10(abs(value))) if value else 0
    near = round(value, places)
    return int(near) if near == int(near) else near
