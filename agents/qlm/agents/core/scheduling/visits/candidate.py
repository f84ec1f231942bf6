"""A model that an instance could serve next. All times are seconds from now."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from qlm.agents.core.scheduling.visits.backlog import Backlog
from qlm.agents.core.scheduling.visits.remain import MARGIN_S
from qlm.domain.ids import ModelId

RESIDENCE_S: Final = 120.0
"""Length of a visit to a model whose swap takes longer than its objective. Its waiting requests are late in
any case; only requests that arrive while it is awake can be in time. So a long stay is weighed, not one visit
for what waits."""

WAITING_WORTH: Final = 0.05
"""Worth to an idle instance of any waiting request, in time or not, in missed objectives. Placements give
work without objectives the same worth (`BATCH_WEIGHT` in `planner.placement.problem`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A model that could be served next.

    Attributes:
        model: The model.
        backlog: Its waiting requests that can still be in time.
        swap_s: Time until it would serve, from the decision on.
        arrivals_rps: Expected arrivals with a deadline.
        quick: Those among them that could wait for a swap from host memory, if the model is placed here:
            arrivals per second, and the time that one can wait before that.
        waiting: Number of all of its waiting requests.
        overdue: Worth of those that are late and that no agent has demoted yet, in missed objectives.
        all_work_s: Time to start all of its waiting requests, late ones included.
        waits_s: Time since the first of them arrived, or since the instance left the model if that is later.
        priority: Lowest priority number among them.
    """

    model: ModelId
    backlog: Backlog
    swap_s: float
    arrivals_rps: float = 0.0
    quick: Sequence[tuple[float, float]] = ()
    waiting: int = 0
    overdue: float = 0.0
    all_work_s: float = 0.0
    waits_s: float = 0.0
    priority: int = 0

    @property
    def leave_at_s(self) -> float:
        """Latest moment to leave for it, if it is the only one."""
        return self.backlog.first_s - self.swap_s - MARGIN_S

    @property
    def too_slow(self) -> bool:
        """Return True if its swap takes longer than its tightest objective."""
        return self.swap_s >= self.backlog.objective_s

    @property
    def stays_s(self) -> float:
        """Time that a visit to it takes at least."""
        return max(self.backlog.work_s, RESIDENCE_S) if self.too_slow else self.backlog.work_s

    @property
    def away_s(self) -> float:
        """Time until all that waits for it is started."""
        return self.swap_s + self.backlog.work_s

    @property
    def worth(self) -> float:
        """What an idle instance gains by a visit that begins now, in missed objectives."""
        return self.backlog.gained(self.swap_s) + self.overdue + WAITING_WORTH * self.waiting

    @property
    def worth_now(self) -> float:
        """What an idle instance gains by a visit now that a later one does not, in missed objectives."""
        return self.backlog.urgent(self.swap_s) + self.overdue + WAITING_WORTH * self.waiting

    def saved(self, begin_s: float, delay_s: float) -> float:
        """Return the requests that a service from `begin_s` on saves against one that is later by a delay."""
        return self.backlog.lost(begin_s + delay_s) - self.backlog.lost(begin_s)
