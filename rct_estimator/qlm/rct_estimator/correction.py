"""Speed correction of one instance: its times over those of its profile, learned from observed work."""

import math
from dataclasses import dataclass
from typing import Final

from qlm.domain.errors import InvalidValueError

PRIOR_LOG_SD: Final = 0.1
"""Standard deviation of log(actual / predicted) before any observation: the error of a profile."""

OBSERVED_LOG_SD: Final = 0.2
"""Standard deviation of one observed log ratio around the true one, before any observation."""

OBSERVED_STRENGTH: Final = 2.0
"""Weight of `OBSERVED_LOG_SD`, in observations."""

OBSERVED_LOG_SD_MIN: Final = 0.02
"""Lower bound of that deviation: the throughput model itself is not more accurate."""

MODEL_LOG_SD: Final = 0.015
"""Log standard deviation of a factor learned at one batch size and used at another. Simulated engine, 13
profiles: 1 to 3 % between 30 % load and saturation. Observations do not reduce it."""

DRIFT_LOG_SD: Final = 0.005
"""Log standard deviation of the drift of the true ratio between two observations."""

KEEP: Final = 0.98
"""Factor by which each observation reduces the weight of earlier ones in the observed variance."""

INFLUENCE_MAX: Final = 2.0
"""Standard deviations beyond which an observation is an outlier. It is clipped to the bound and doubles the
posterior variance: several in a row are a change to follow."""

OUTLIER_LOG_SD_MAX: Final = PRIOR_LOG_SD / 2
"""Bound of the posterior log standard deviation after an outlier."""

FACTOR_MAX: Final = 4.0
"""Bound of the factor: an instance counts as at most this much slower or faster than its profile."""


@dataclass(frozen=True, slots=True)
class Correction:
    """Ratio of actual to predicted times of one instance, learned from (predicted, actual) pairs.

    A Kalman filter of one number: log ratios are normal around the true one, which drifts. The observation
    variance is learned too, so the uncertainty shrinks fast where observations agree (2.5 % after 20) and
    remains where they do not.

    Attributes:
        log_ratio: Posterior mean of log(actual / predicted).
        log_var: Posterior variance.
        observed_var: Estimated variance of one observation around the true log ratio.
        observed_weight: Number of observations behind that estimate.
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
        """Factor to multiply predicted times with."""
        return math.exp(self.log_ratio)

    @property
    def uncertainty(self) -> float:
        """Relative standard deviation of the factor."""
        return math.hypot(math.sqrt(self.log_var), MODEL_LOG_SD)

    def observed(self, predicted_s: float, actual_s: float) -> "Correction":
        """Return the posterior after one more duration.

        Args:
            predicted_s: Duration predicted without correction; positive. Use times over many requests of a
                full batch, for instance the service time of a group.
            actual_s: Observed duration; positive.

        Raises:
            InvalidValueError: A time is not positive.
        """
        for name, value in (("predicted_s", predicted_s), ("actual_s", actual_s)):
            if not (math.isfinite(value) and value > 0):
                raise InvalidValueError(name, value, "a positive number")
        before_var = min(self.log_var + DRIFT_LOG_SD**2, PRIOR_LOG_SD**2)
        gain = before_var / (before_var + self.observed_var)
        bound = INFLUENCE_MAX * math.sqrt(before_var + self.observed_var)
        innovation = math.log(actual_s) - math.log(predicted_s) - self.log_ratio
        outlier = abs(innovation) > bound
        innovation = min(bound, max(-bound, innovation))
        limit = math.log(FACTOR_MAX)
        # E[innovation^2] = before_var + observed_var: this share of it is the variance of the observation.
        sample_var = innovation**2 * (1 - gain)
        weight, after_var = KEEP * self.observed_weight, (1 - gain) * before_var
        return Correction(
            log_ratio=min(limit, max(-limit, self.log_ratio + gain * innovation)),
            log_var=max(after_var, min(2 * before_var, OUTLIER_LOG_SD_MAX**2)) if outlier else after_var,
            observed_var=max(
                OBSERVED_LOG_SD_MIN**2, (weight * self.observed_var + sample_var) / (weight + 1)
            ),
            observed_weight=weight + 1,
        )
