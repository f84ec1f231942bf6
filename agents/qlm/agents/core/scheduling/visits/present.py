"""The awake model of an instance, and what its absence would cost. All times are seconds from now."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from qlm.agents.core.scheduling.visits.backlog import Backlog
from qlm.agents.core.scheduling.visits.remain import Work

KNOWN_ARRIVALS: Final = 4.0
"""Arrivals that an expected rate rests on: the longer none comes, the fewer are expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """The awake model.

    Attributes:
        backlog: Its waiting requests that can still be in time.
        back_s: Time until it would serve again after a sleep.
        awake_s: Time since it serves.
        idle_s: Time since it had anything to do; 0 while it has.
        running_slack_s: Latest starts of running requests that still have an objective to meet.
        evicting_s: Time to compute again what an eviction of all running requests discards.
        drain_s: Time until the running requests that may not be evicted have ended.
        ends_s: Time until all other running requests have ended, stopgaps left out; 0 without any.
        service_s: Mean time that one of its requests adds to the wait of others.
        arrivals: Expected arrivals per second and time that one can wait, by class.
        answer_s: Mean time from the start of one of them to the end of its answer.
        starved_after_s: Time after which a model that waits is visited in any case.
        priority: Lowest priority number among its running and waiting requests; None without any.
        waiting: Times and latest start of a request of each of its waiting groups.
        spare_s: Work of prompts that can be begun as a stopgap (`Remain.spare_s`).
    """

    backlog: Backlog
    back_s: float
    awake_s: float
    idle_s: float = 0.0
    running_slack_s: Sequence[float] = ()
    evicting_s: float = 0.0
    drain_s: float = 0.0
    ends_s: float = 0.0
    service_s: float = 0.05
    arrivals: Sequence[tuple[float, float]] = ()
    answer_s: float = 0.0
    starved_after_s: float = float("inf")
    priority: int | None = None
    waiting: Sequence[tuple[Work, float]] = ()
    spare_s: float = 0.0

    def cost_of_absence(self, away_s: float) -> float:
        """Return the requests that are lost if it serves again only after `away_s`."""
        waiting = self.backlog.lost(away_s) - self.backlog.lost(0.0)
        running = sum(slack_s < away_s for slack_s in self.running_slack_s)
        return waiting + running + self.coming_lost(away_s) + self.evicting_s / max(self.service_s, 1e-6)

    def has_lasting(self, away_s: float) -> bool:
        """Return whether requests can still be in time after an absence: they need another visit then."""
        running = any(slack_s >= away_s for slack_s in self.running_slack_s)
        return running or self.backlog.any_in_time(away_s)

    def coming_lost(self, away_s: float) -> float:
        """Return the expected arrivals that are lost if it serves again only after `away_s`."""
        lost = sum(rate_rps * max(0.0, away_s - slack_s) for rate_rps, slack_s in self.arrivals)
        return lost * self._still_expected

    def idle_share(self, within_s: float) -> float:
        """Return the share of times at which it has no answer under way that takes longer than that.

        That is the chance of an idle server in a queue with Poisson arrivals and a place for each.
        """
        rate_rps = sum(rate_rps for rate_rps, _slack_s in self.arrivals)
        return math.exp(-rate_rps * max(0.0, self.answer_s - within_s))

    @property
    def _still_expected(self) -> float:
        """Part of the expected rate that the time without arrivals leaves (mean of a Gamma distribution)."""
        missed = self.idle_s * sum(rate_rps for rate_rps, _slack_s in self.arrivals)
        return KNOWN_ARRIVALS / (KNOWN_ARRIVALS + missed)
