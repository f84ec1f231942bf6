"""Normal distributions as values, shared by estimator and planner."""

import math
from typing import Final

from qlm.domain.errors import InvalidValueError
from qlm.domain.values import value


@value(kw_only=False)
class Normal:
    """A normal distribution.

    Attributes:
        mean: Mean, in the unit of the context, mostly seconds.
        var: Variance, in that unit squared; 0 for a certain value.
    """

    mean: float
    var: float = 0.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.mean):
            raise InvalidValueError("mean", self.mean, "a finite number")
        if not (math.isfinite(self.var) and self.var >= 0):
            raise InvalidValueError("var", self.var, "a finite number, 0 or more")

    def __add__(self, other: "Normal") -> "Normal":
        """Return the distribution of the sum of independent variables."""
        return Normal(self.mean + other.mean, self.var + other.var)

    def scaled(self, factor: float) -> "Normal":
        """Return the distribution of `factor` times the variable."""
        return Normal(self.mean * factor, self.var * factor * factor)

    def at_most(self, value: float) -> float:
        """Return the probability that the variable is at most `value`."""
        if self.var == 0:
            return 1.0 if self.mean <= value else 0.0
        return 0.5 * math.erfc((self.mean - value) / math.sqrt(2 * self.var))


NOTHING: Final = Normal(0.0, 0.0)
"""The certain value 0."""
