"""Arrival rates of each class and the dispersion of their counts.

Rates are counted from ends: a waiting burst is no rate, and a class that is served at once ends as fast as it
arrives. A class that is not served at once gets too low a rate; then it is not the one that overtakes.
Dispersion is counted from acceptances, since ends come in bunches after preemptions and as memory becomes
free.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from qlm.domain.group import RequestClass
from qlm.domain.view import ClassView, ClusterView

READ_EVERY_S: Final = 10.0
"""Least time between two readings of a class, seconds."""

HORIZON_S: Final = 300.0
"""Age at which arrivals weigh 1/e, seconds."""

COUNT_MIN: Final = 0.5
"""A class without waiting requests is forgotten when its weighted count falls below this."""

POISSON_STRENGTH: Final = 4.0
"""Weight of the assumption of Poisson arrivals (variance equal to the mean), in readings."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Arrival statistics of one class, with exponential forgetting.

    Attributes:
        seen_ns: Time of the last reading.
        total: Requests of the class that had ended by then.
        count: Weighted number of requests that ended.
        exposure_s: Weighted time in which they ended.
        readings: Weighted number of readings.
        accepted: Requests of the class that had been accepted by `seen_ns`.
        came: Weighted number of requests accepted within the exposure.
        squares: Weighted sum over readings of the squared number accepted over the interval, 1/s.
        asked: Weighted number of requests accepted, served or not.
        asked_s: Weighted time in which they were.
    """

    seen_ns: int
    total: int
    count: float = 0.0
    exposure_s: float = 0.0
    readings: float = 0.0
    accepted: int = 0
    came: float = 0.0
    squares: float = 0.0
    asked: float = 0.0
    asked_s: float = 0.0

    @property
    def rate_rps(self) -> float:
        """Arrivals per second; 0 before the second reading with ends."""
        return self.count / self.exposure_s if self.exposure_s else 0.0

    @property
    def accepted_rps(self) -> float:
        """Requests accepted per second, of a class that is not served, too; 0 before the second reading."""
        return self.asked / self.asked_s if self.asked_s else 0.0

    @property
    def dispersion(self) -> float:
        """Index of dispersion of the counts, variance over mean: 1 for Poisson, more for bursts.

        With intervals t and counts n: sum of (n - rate t)^2 / t, over the number of readings and the rate.
        """
        if not self.came:
            return 1.0
        squared = max(0.0, self.squares * self.exposure_s / self.came - self.came)
        return max(1.0, (squared + POISSON_STRENGTH) / (self.readings + POISSON_STRENGTH))

    @property
    def uncertainty(self) -> float:
        """Relative standard deviation of the rate.

        In the long run, the variance of a sum with exponential weights is half of that of equal weights.
        """
        aged = max(0.5, 1 - self.exposure_s / (2 * HORIZON_S))
        return math.sqrt(aged * self.dispersion / max(1.0, self.count))

    def seen(self, total: int, now_ns: int, accepted: int) -> "Arrivals":
        """Return the statistics after a reading of the ended and accepted requests."""
        passed_s = (now_ns - self.seen_ns) / 1e9
        if passed_s < READ_EVERY_S:
            return self
        keep, new = math.exp(-passed_s / HORIZON_S), max(0, total - self.total)
        came = max(0, accepted - self.accepted)
        asked, asked_s = keep * self.asked + came, keep * self.asked_s + passed_s
        if not self.total:
            # The time without ends depends on service times, not on the arrival rate.
            return Arrivals(now_ns, total, accepted=accepted, asked=asked, asked_s=asked_s)
        return Arrivals(
            seen_ns=now_ns,
            total=total,
            count=keep * self.count + new,
            exposure_s=keep * self.exposure_s + passed_s,
            readings=keep * self.readings + 1,
            accepted=accepted,
            came=keep * self.came + came,
            squares=keep * self.squares + came**2 / passed_s,
            asked=asked,
            asked_s=asked_s,
        )


def update_arrivals(
    view: ClusterView, now_ns: int, before: Mapping[RequestClass, Arrivals]
) -> Mapping[RequestClass, Arrivals]:
    """Return the statistics after a view; `before` itself if no reading is due.

    A class without waiting requests is not in the view. It is kept with zero new arrivals until its counts
    are below `COUNT_MIN`. Requests that end meanwhile are counted when the class is back.
    """
    after = {each.cls: _seen(each, now_ns, before.get(each.cls)) for each in view.classes}
    for cls, known in before.items():
        if cls in after:
            continue
        silent = known.seen(known.total, now_ns, known.accepted)
        if max(silent.count, silent.asked) >= COUNT_MIN:
            after[cls] = silent
    same = len(after) == len(before) and all(before.get(cls) is known for cls, known in after.items())
    return before if same else after


def _seen(view: ClassView, now_ns: int, known: Arrivals | None) -> Arrivals:
    ended, accepted = view.finished, view.accepted
    if known is None:
        return Arrivals(now_ns, ended, accepted=accepted)
    return known.seen(ended, now_ns, accepted)
