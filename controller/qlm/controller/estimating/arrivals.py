"""How fast requests of each class come, so that what will follow or overtake those that wait can be told.

Counted as they end: a burst that still waits is no rate, and a class that is served at once ends as fast
as it arrives. One that is not is told too slow; then it is not the one that overtakes. How much their number
scatters is seen as they are accepted: ends come in bunches, as evictions and free memory have it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from qlm.domain.group import RequestClass
from qlm.domain.view import ClassView, ClusterView

READ_EVERY_S: Final = 10.0
"""A class is counted this often at most."""

HORIZON_S: Final = 300.0
"""Arrivals so long ago count 1/e of those now."""

COUNT_MIN: Final = 0.5
"""A class of which less has come lately, and nothing waits, is forgotten."""

POISSON_STRENGTH: Final = 4.0
"""Readings that the assumption of Poisson arrivals, whose counts have their mean as variance, is worth."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Arrivals of one class, older ones weigh less.

    Attributes:
        seen_ns: When they were last counted.
        total: Requests of the class that had ended then.
        count: Those that ended since the first end was seen.
        exposure_s: Time in which they did.
        readings: How many times they were counted.
        accepted: Requests of the class that had come at `seen_ns`.
        came: Those that came in the exposure.
        squares: Sum over the readings of the squared number that came over the length, per second.
    """

    seen_ns: int
    total: int
    count: float = 0.0
    exposure_s: float = 0.0
    readings: float = 0.0
    accepted: int = 0
    came: float = 0.0
    squares: float = 0.0

    @property
    def rate_rps(self) -> float:
        """Arrivals per second; 0 before there is anything to say."""
        return self.count / self.exposure_s if self.exposure_s else 0.0

    @property
    def dispersion(self) -> float:
        """Variance over mean of the number that comes in a reading: 1 for Poisson, more for bursts.

        With lengths t and counts n: sum of (n - rate t)^2 / t over the readings, over their number and the
        rate.
        """
        if not self.came:
            return 1.0
        spread = max(0.0, self.squares * self.exposure_s / self.came - self.came)
        return max(1.0, (spread + POISSON_STRENGTH) / (self.readings + POISSON_STRENGTH))

    @property
    def doubt(self) -> float:
        """Relative standard deviation of the rate.

        A sum with exponentially falling weights varies half as much as its mean, once it is old enough.
        """
        aged = max(0.5, 1 - self.exposure_s / (2 * HORIZON_S))
        return math.sqrt(aged * self.dispersion / max(1.0, self.count))

    def seen(self, total: int, now_ns: int, accepted: int) -> "Arrivals":
        """Count again: those that have ended, and those that have come."""
        passed_s = (now_ns - self.seen_ns) / 1e9
        if passed_s < READ_EVERY_S:
            return self
        if not self.total:
            # How long nothing has ended says how long requests take, not how fast they come.
            return Arrivals(now_ns, total, accepted=accepted)
        keep, new = math.exp(-passed_s / HORIZON_S), max(0, total - self.total)
        came = max(0, accepted - self.accepted)
        return Arrivals(
            seen_ns=now_ns,
            total=total,
            count=keep * self.count + new,
            exposure_s=keep * self.exposure_s + passed_s,
            readings=keep * self.readings + 1,
            accepted=accepted,
            came=keep * self.came + came,
            squares=keep * self.squares + came**2 / passed_s,
        )


def arrivals(
    view: ClusterView, now_ns: int, before: Mapping[RequestClass, Arrivals]
) -> Mapping[RequestClass, Arrivals]:
    """Count the classes in a view; `before` itself if it is too soon for all of them.

    A class of which nothing waits is not in the view. It is kept, as one of which nothing comes, until
    less than `COUNT_MIN` is left of its count; what ended meanwhile is counted when it is back.
    """
    after = {each.cls: _seen(each, now_ns, before.get(each.cls)) for each in view.classes}
    for cls, known in before.items():
        if (
            cls not in after
            and (silent := known.seen(known.total, now_ns, known.accepted)).count >= COUNT_MIN
        ):
            after[cls] = silent
    same = len(after) == len(before) and all(before.get(cls) is known for cls, known in after.items())
    return before if same else after


def _seen(view: ClassView, now_ns: int, known: Arrivals | None) -> Arrivals:
    ended, accepted = view.finished, view.accepted
    if known is None:
        return Arrivals(now_ns, ended, accepted=accepted)
    return known.seen(ended, now_ns, accepted)
