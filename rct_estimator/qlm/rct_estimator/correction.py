"""How much slower one instance is than its profile says, learned from what its work took."""

import math
from dataclasses import dataclass
from typing import Final

from qlm.domain.errors import InvalidValueError

PRIOR_LOG_SD: Final = 0.1
"""How far a profile is off before anything was observed: standard deviation of log(actual / predicted)."""

OBSERVED_LOG_SD: Final = 0.2
"""Spread of one observed ratio around an instance's true one, likewise, before any was observed."""

OBSERVED_STRENGTH: Final = 2.0
"""Observations that `OBSERVED_LOG_SD` is worth."""

OBSERVED_LOG_SD_MIN: Final = 0.02
"""However well observations agree, they do not count as exacter than this: the model behind them is not."""

MODEL_LOG_SD: Final = 0.015
"""How far a factor learned in one state of the batch is off in another (simulated engine, 13 profiles:
1 to 3 % between 30 % load and saturation), likewise; no observation takes it away."""

DRIFT_LOG_SD: Final = 0.005
"""By how much an instance's own ratio moves from one observation to the next, likewise."""

KEEP: Final = 0.98
"""What each observation leaves of the weight of those before in what is known of their spread."""

INFLUENCE_MAX: Final = 2.0
"""An observation further off than so many standard deviations counts as if it were just there, and doubles
the variance of what is known: several in a row are a change that is to be followed."""

STARTLED_LOG_SD_MAX: Final = PRIOR_LOG_SD / 2
"""To so much doubt at most, likewise."""

FACTOR_MAX: Final = 4.0
"""An instance counts as at most so much slower, or faster, than its profile says."""


@dataclass(frozen=True, slots=True)
class Correction:
    """How much slower one instance is than its profile says, learned from (predicted, actual) pairs.

    Logarithms of the ratios are normal around the instance's own, which drifts: a Kalman filter of one
    number. How far single observations scatter is learned with it, so that doubt shrinks quickly where
    they agree (to 2.5 % after 20 of them) and stays where they do not.

    Attributes:
        log_ratio: Posterior mean of log(actual / predicted).
        log_var: Posterior variance.
        observed_var: Variance of one observation around the instance's own ratio, as known so far.
        observed_weight: Observations that this rests on.
    """

    log_ratio: float = 0.0
    log_var: float = PRIOR_LOG_SD**2
    observed_var: float = OBSERVED_LOG_SD**2
    observed_weight: float = OBSERVED_STRENGTH

    def __post_init__(self) -> None:
        if not abs(self.log_ratio) <= math.log(FACTOR_MAX) + 1e-9:
            raise InvalidValueError("log_ratio", self.log_ratio, f"at most log {FACTOR_MAX:g} either way")
        if not 0 < self.log_var <= 1:
            raise InvalidValueError("log_var", self.log_var, "a number above 0, up to 1")
        for name in ("observed_var", "observed_weight"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise InvalidValueError(name, getattr(self, name), "a positive number")

    @property
    def factor(self) -> float:
        """By what predicted times are to be multiplied."""
        return math.exp(self.log_ratio)

    @property
    def doubt(self) -> float:
        """Relative standard deviation of that factor."""
        return math.hypot(math.sqrt(self.log_var), MODEL_LOG_SD)

    def observed(self, predicted_s: float, actual_s: float) -> "Correction":
        """Learn from one duration.

        Args:
            predicted_s: As predicted without any correction; positive. Use times over many requests of
                a full batch, the drain of a group for instance.
            actual_s: As it came out; positive.

        Raises:
            InvalidValueError: A time is not positive.
        """
        for name, value in (("predicted_s", predicted_s), ("actual_s", actual_s)):
            if not (math.isfinite(value) and value > 0):
                raise InvalidValueError(name, value, "a positive number")
        before_var = min(self.log_var + DRIFT_LOG_SD**2, PRIOR_LOG_SD**2)
        gain = before_var / (before_var + self.observed_var)
        bound = INFLUENCE_MAX * math.sqrt(before_var + self.observed_var)
        surprise = math.log(actual_s) - math.log(predicted_s) - self.log_ratio
        startled = abs(surprise) > bound
        surprise = min(bound, max(-bound, surprise))
        limit = math.log(FACTOR_MAX)
        # E[surprise^2] = before_var + observed_var: this share of it is the observation's own.
        scatter = surprise**2 * (1 - gain)
        weight, after_var = KEEP * self.observed_weight, (1 - gain) * before_var
        return Correction(
            log_ratio=min(limit, max(-limit, self.log_ratio + gain * surprise)),
            log_var=max(after_var, min(2 * before_var, STARTLED_LOG_SD_MAX**2)) if startled else after_var,
            observed_var=max(OBSERVED_LOG_SD_MIN**2, (weight * self.observed_var + scatter) / (weight + 1)),
            observed_weight=weight + 1,
        )
