"""Duration of an iteration, learned from the iterations of the engine."""

from itertools import combinations
from typing import Final

import numpy as np
import numpy.typing as npt

from qlm.rct_estimator.profiles.iteration import IterationTime

FORGETTING: Final = 0.999
"""Factor of the weight of each iteration per later one: the last thousand count."""

LEAST_STEPS: Final = 16
"""Iterations before a fit; until then, all take what they took on average."""

UNKNOWN_MS: Final = 20.0
"""Duration before the first iteration: that of a model of 8 billion parameters on an A100, full."""

_FAR_TOKENS: Final = 1 << 20
_LEAST_SHARE: Final = 0.01


class LearnedIteration:
    """Least squares of the relative error of a + b N + c C, with a, b and c not negative.

    N are the tokens of an iteration, C those in the KV cache. The engine profile has more coefficients
    (`IterationTime`); these three are what any traffic tells apart.
    """

    __slots__ = ("_fitted", "_products", "_steps", "_sums")

    def __init__(self) -> None:
        self._products: npt.NDArray[np.float64] = np.zeros((3, 3))
        self._sums: npt.NDArray[np.float64] = np.zeros(3)
        self._steps = 0
        self._fitted: IterationTime | None = None

    def observe(self, tokens: int, cached_tokens: int, duration_s: float) -> None:
        """Take one iteration."""
        if tokens < 1 or duration_s <= 0:
            return
        row = np.array((1.0, tokens, cached_tokens)) / (1000 * duration_s)
        self._products = FORGETTING * self._products + np.outer(row, row)
        self._sums = FORGETTING * self._sums + row
        self._steps += 1
        self._fitted = None

    @property
    def iteration(self) -> IterationTime:
        """The duration of an iteration, as far as it is known."""
        if self._fitted is None:
            self._fitted = self._fit()
        return self._fitted

    def _fit(self) -> IterationTime:
        if not self._steps:
            return IterationTime.constant(UNKNOWN_MS)
        mean_ms = float(self._sums[0] / self._products[0, 0])
        if self._steps < LEAST_STEPS:
            return IterationTime.constant(mean_ms)
        fixed, token, cached = _not_negative(self._products, self._sums)
        first = max(fixed + token, _LEAST_SHARE * mean_ms)
        last = first + token * (_FAR_TOKENS - 1)
        return IterationTime(host_ms=0.0, linear_ms=((1.0, first), (_FAR_TOKENS, last)), kv_ms=cached)


def _not_negative(
    products: npt.NDArray[np.float64], sums: npt.NDArray[np.float64]
) -> tuple[float, float, float]:
    """Solve the normal equations: of all sets of coefficients, the best that has no negative one."""
    best, least = np.zeros(3), np.inf
    for size in (3, 2, 1):
        for chosen in combinations(range(3), size):
            picked = np.array(chosen)
            part = np.linalg.lstsq(products[np.ix_(picked, picked)], sums[picked], rcond=None)[0]
            solution = np.zeros(3)
            solution[picked] = part
            error = float(solution @ products @ solution - 2 * sums @ solution)
            if part.min() >= 0 and error < least:
                best, least = solution, error
    return float(best[0]), float(best[1]), float(best[2])
