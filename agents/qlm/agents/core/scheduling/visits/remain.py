"""What a decision about a visit leads to: remain with the model for some time, or leave it."""

from dataclasses import dataclass
from typing import Final

from qlm.domain.ids import ModelId

MARGIN_S: Final = 3.0
"""Time kept between the planned start of a model and its first latest start: estimates are wrong by that."""


SPARE_S: Final = 1.0
"""Longest work of prompts that stopgaps put before a request with an objective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Times of a request that could be begun.

    Attributes:
        answer_s: Mean time until it ends.
        service_s: Time that it adds to the wait of others.
        refill_s: Time to compute again what an eviction discards.
    """

    answer_s: float
    service_s: float
    refill_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Remain:
    """Go on with the present model.

    Attributes:
        until_s: Latest moment to leave it; infinite if no other model waits.
        back_s: Time from now until it would serve again after a round of all visits.
        why: The comparison that keeps an idle instance from leaving; empty while it has work.
        spare_s: Work of prompts that it would be idle without. What is begun in it may be evicted at any
            time: its prompt must be computed after the visit in any case.
    """

    until_s: float = float("inf")
    back_s: float = float("inf")
    why: str = ""
    spare_s: float = 0.0

    def begins(self, work: Work, *, latest_start_s: float) -> bool:
        """Return True if a request is still begun in this visit.

        It is if it ends in it, if it cannot wait for the next one, or as a stopgap: if until its eviction it
        gets on by more than that discards, or if the instance would be idle otherwise.

        Args:
            work: Its times.
            latest_start_s: Its latest start; infinite without an objective.
        """
        return self.spare_s > 0 or self.meant(work, latest_start_s=latest_start_s)

    def meant(self, work: Work, *, latest_start_s: float) -> bool:
        """Return True if a request is begun even by an instance with other work."""
        return self.ends(work) or self._cannot_wait(latest_start_s) or self._gets_on(work)

    def ends(self, work: Work) -> bool:
        """Return True if a request ends before the latest moment to leave."""
        return work.answer_s < self.until_s

    def _cannot_wait(self, latest_start_s: float) -> bool:
        # As long as the instance stays beyond the latest moment, what is lost by its absence is begun.
        return latest_start_s < max(0.0, self.until_s) + self.back_s + MARGIN_S

    def _gets_on(self, work: Work) -> bool:
        gain_s = work.service_s * self.until_s / max(work.answer_s, 1e-6)
        return self.until_s > 0 and gain_s > work.refill_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Swap to a model.

    Attributes:
        why: For the event history.
    """

    model: ModelId
    why: str


NEVER: Final = Remain()
"""Remain without a limit."""
