"""Solutions of the exact solver, and its answer."""

from dataclasses import dataclass

from qlm.domain.ids import GroupId
from qlm.planner.exact.incumbent import Queues
from qlm.planner.exact.limits import PROVEN_GAP
from qlm.planner.problem import Plan, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Queues, their penalty, and a lower bound on the penalty of every plan; seconds."""

    queues: Queues
    penalty_s: float
    bound_s: float

    @classmethod
    def empty(cls, problem: Problem) -> "Solution":
        """Return the solution of a problem without placeable groups."""
        return cls(queues=[[] for _ in problem.instances], penalty_s=0.0, bound_s=0.0)

    @property
    def proven(self) -> bool:
        """True if the gap is closed: no plan is better."""
        return self.penalty_s - self.bound_s <= PROVEN_GAP * max(1.0, abs(self.penalty_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactAnswer:
    """A plan and its proof.

    Attributes:
        penalty_s: Penalty: the mean over the scenarios (`sample_average`), or the expectation (`verify`).
        lower_bound_s: Lower bound on that of every plan, on these scenarios or in expectation.
        proven: No plan is better in that sense.
        chances: Probability that the last request of each placed group meets its deadline (left side of
            equation 12).
    """

    plan: Plan
    penalty_s: float
    lower_bound_s: float
    proven: bool
    chances: dict[GroupId, float]

    def unlikely(self, met_share: float) -> tuple[GroupId, ...]:
        """Return the groups that break equation 12, the chance constraint P(penalty <= 0) >= `met_share`."""
        return tuple(sorted(group for group, chance in self.chances.items() if chance < met_share))
