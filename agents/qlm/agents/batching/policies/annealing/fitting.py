"""Least-squares fit of equations 14 and 15 of SLO-aware annealing (section 4.2)."""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import combinations, product
from typing import Final, NamedTuple

import numpy as np

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.profiles.iteration import Coefficients, Equations, IterationTime, pairs_of

BATCHES: Final = (1, 2, 4, 8, 16, 32)
"""Batches at which a profile is sampled: those of the paper's profiling (section 5.1)."""
LENGTHS: Final = (100, 200, 400, 800, 1200, 1600, 2000)
"""Lengths at which a profile is sampled: the paper profiles from 100 tokens on, and calls the equations valid
below 2 000."""
_TERMS: Final = 4
_DELTA: Final = 3


class Timed(NamedTuple):
    """One timed iteration.

    Attributes:
        batch: Requests in it (b).
        tokens: Prompt of each, or its context for a decode (l).
        ms: Its duration.
    """

    batch: float
    tokens: float
    ms: float


def fit_equations(prefill: Iterable[Timed], decode: Iterable[Timed]) -> Equations:
    """Fit both equations to timed iterations.

    Raises:
        InvalidValueError: Fewer than four iterations of a kind, or one that took no time.
    """
    return Equations(_fitted("prefill", tuple(prefill)), _fitted("decode", tuple(decode)))


@lru_cache(maxsize=64)
def equations_of(iteration: IterationTime) -> Equations:
    """Return the equations nearest to the iterations of a profile, sampled as the paper profiles."""
    return fit_equations(
        _sampled(lambda batch, tokens: _prefill_ms(iteration, batch, tokens)),
        _sampled(
            lambda batch, tokens: iteration.ms(
                tokens=batch, context_tokens=batch * tokens, sequences=batch, mixed=False
            )
        ),
    )


def _prefill_ms(iteration: IterationTime, batch: int, tokens: int) -> float:
    return iteration.ms(
        tokens=batch * tokens,
        context_tokens=0.0,
        sequences=batch,
        pairs=batch * pairs_of(tokens),
        admitted=batch,
        mixed=True,
    )


def _sampled(ms: Callable[[int, int], float]) -> list[Timed]:
    return [Timed(batch, tokens, ms(batch, tokens)) for batch, tokens in product(BATCHES, LENGTHS)]


def _fitted(name: str, points: Sequence[Timed]) -> Coefficients:
    """Return the coefficients of the least mean squared error; none is negative, and delta is positive."""
    if len(points) < _TERMS or min(point.ms for point in points) <= 0:
        raise InvalidValueError(name, len(points), f"at least {_TERMS} iterations, each of positive ms")
    batch, tokens, ms = np.array(points, dtype=np.float64).T
    columns = np.stack([batch * tokens, batch, tokens, np.ones_like(batch)], axis=1)
    # Scaled to their sizes: products of batch and length are a million times the constant.
    sizes = columns.max(axis=0)
    least, values = np.inf, np.zeros(_TERMS)
    for kept in _subsets():
        found = np.linalg.lstsq(columns[:, kept] / sizes[kept], ms, rcond=None)[0]
        error = float(np.square(columns[:, kept] / sizes[kept] @ found - ms).sum())
        if found.min() >= 0 and found[-1] > 0 and error < least:
            least, values = error, np.zeros(_TERMS)
            values[kept] = found / sizes[kept]
    return Coefficients(**dict(zip(("alpha", "beta", "gamma", "delta"), values.tolist(), strict=True)))


def _subsets() -> list[list[int]]:
    """Return the sets of terms that may be positive, all first; delta is last in each.

    The least error under non-negative coefficients is that of one of these sets without the limit.
    """
    others = range(_DELTA)
    return [[*some, _DELTA] for size in (3, 2, 1, 0) for some in combinations(others, size)]
