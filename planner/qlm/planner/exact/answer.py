"""What the exact solver finds, and what it says about it."""

from dataclasses import dataclass

from qlm.domain.ids import GroupId
from qlm.planner.exact.incumbent import Queues
from qlm.planner.exact.limits import PROVEN_GAP
from qlm.planner.problem import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Queues, their value, and a value that no plan is below; seconds."""

    queues: Queues
    value_s: float
    bound_s: float

    @property
    def proven(self) -> bool:
        """Whether no plan is better."""
        return self.value_s - self.bound_s <= PROVEN_GAP * max(1.0, abs(self.value_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactAnswer:
    """A plan and what is known about it.

    Attributes:
        plan: The plan.
        value_s: Its penalty: the mean over the scenarios (`sample_average`), or expected (`verify`).
        lower_bound_s: No plan is below it, on these scenarios or in expectation.
        proven: Whether no plan is better in that sense.
        chances: Per placed group, how likely its last request meets its deadline (left side of equation 12).
    """

    plan: Plan
    value_s: float
    lower_bound_s: float
    proven: bool
    chances: dict[GroupId, float]

    def unlikely(self, met_share: float) -> tuple[GroupId, ...]:
        """Groups that break the chance constraint of equation 12, P(penalty <= 0) >= `met_share`."""
        return tuple(sorted(group for group, chance in self.chances.items() if chance < met_share))
