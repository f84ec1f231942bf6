"""Arrival rates of each class and the dispersion of their counts.

Rates are counted from ends: a waiting burst is no rate, and a class that is served at once ends as fast as it
arrives. A class that is not served at once gets too low a rate; then it is not the one that overtakes.
Dispersion is counted from acceptances, since ends come in bunches after preemptions and as memory becomes
free.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from qlm.domain.group import RequestClass
from qlm.domain.view import ClassView, ClusterView

READ_EVERY_S: Final = 10.0
"""Least time between two readings of a class, seconds."""

HORIZON_S: Final = 300.0
"""Age at which arrivals weigh 1/e, seconds."""

LONG_HORIZON_S: Final = 7200.0
"""The same age for the rate over hours, seconds."""

LONG_WEIGHT_S: Final = 30.0
"""Time as which the rate over hours counts in the present one: a burst after a restart is no rate."""

KEPT_S: Final = 3600.0
"""Time after which a class that is not in the view is forgotten, seconds."""

SILENT_MAX: Final = 256
"""Largest number of such classes; the one seen longest ago goes first."""

RATE_OVER_S: Final = 5.0
"""Least time over which requests count as a rate: the first of a burst come within milliseconds."""

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
        kept: Those of them that had met their objective before (`ClassView.kept`).
        came: Weighted number of requests accepted within the exposure.
        squares: Weighted sum over readings of the squared number accepted over the interval, 1/s.
        asked: Weighted number of requests accepted, served or not.
        asked_s: Weighted time in which they were.
        past: The same number as `asked`, weighted over hours.
        past_s: Its time.
        present_ns: Time of the last view with the class.
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
    past: float = 0.0
    past_s: float = 0.0
    present_ns: int = 0
    kept: int = 0

    @property
    def rate_rps(self) -> float:
        """Arrivals per second; 0 before the second reading with ends."""
        return self.count / self.exposure_s if self.exposure_s else 0.0

    @property
    def accepted_rps(self) -> float:
        """Requests accepted per second, of a class that is not served, too; 0 before the second reading."""
        asked_s, past_s = max(RATE_OVER_S, self.asked_s), max(RATE_OVER_S, self.past_s)
        weight_s = min(LONG_WEIGHT_S, past_s)
        return (self.asked + weight_s * self.past / past_s) / (asked_s + weight_s)

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
        """Return the statistics after a reading of the ended and accepted requests, if one is due."""
        due = not 0 <= now_ns - self.seen_ns < READ_EVERY_S * 1e9
        return self.read(total, now_ns, accepted) if due else self

    def read(self, total: int, now_ns: int, accepted: int) -> "Arrivals":
        """Return the statistics after a reading, however short the time since the last one."""
        if accepted < self.accepted or now_ns < self.seen_ns:
            # The store was emptied, or restarted: it counts what it still has, or gets back, a second time.
            # Or the last reading is by a clock that was ahead. How many have come since, or in which time, is
            # not known.
            present_ns = min(self.present_ns, now_ns)
            return replace(self, seen_ns=now_ns, total=total, accepted=accepted, present_ns=present_ns)
        passed_s = max(1e-9, (now_ns - self.seen_ns) / 1e9)
        keep, keep_long = math.exp(-passed_s / HORIZON_S), math.exp(-passed_s / LONG_HORIZON_S)
        new, came = max(0, total - self.total), accepted - self.accepted
        read = replace(
            self,
            seen_ns=now_ns,
            total=total,
            accepted=accepted,
            asked=keep * self.asked + came,
            asked_s=keep * self.asked_s + passed_s,
            past=keep_long * self.past + came,
            past_s=keep_long * self.past_s + passed_s,
        )
        if not self.total and not self.count:
            # The time before the first end depends on service times, not on the arrival rate.
            return replace(read, count=0.0, exposure_s=0.0, readings=0.0, came=0.0, squares=0.0)
        return replace(
            read,
            count=keep * self.count + new,
            exposure_s=keep * self.exposure_s + passed_s,
            readings=keep * self.readings + 1,
            came=keep * self.came + came,
            squares=keep * self.squares + came**2 / passed_s,
        )


def update_arrivals(
    view: ClusterView, now_ns: int, before: Mapping[RequestClass, Arrivals], since_ns: int | None = None
) -> Mapping[RequestClass, Arrivals]:
    """Return the statistics after a view; `before` itself if no reading is due.

    A class without waiting requests is not in the view. It is kept with zero new arrivals for `KEPT_S`.
    Requests that end meanwhile are counted when the class is back.

    Args:
        view: The cluster.
        now_ns: Time of the view, nanoseconds since the epoch.
        before: The statistics so far.
        since_ns: Time of the first view; None if this is it.
    """
    after = {each.cls: _seen(each, now_ns, before.get(each.cls), since_ns) for each in view.classes}
    silent = [item for item in before.items() if item[0] not in after and is_recent(item[1], now_ns)]
    if len(silent) > SILENT_MAX:
        silent = sorted(silent, key=lambda item: item[1].present_ns)[-SILENT_MAX:]
    after |= {cls: known.seen(known.total, now_ns, known.accepted) for cls, known in silent}
    same = len(after) == len(before) and all(before.get(cls) is known for cls, known in after.items())
    return before if same else after


def is_recent(known: Arrivals, now_ns: int) -> bool:
    """Return whether a class was seen lately."""
    return now_ns - known.present_ns < KEPT_S * 1e9


def present_rates(
    view: ClusterView, now_ns: int, known: Mapping[RequestClass, Arrivals]
) -> dict[RequestClass, float]:
    """Return the accepted requests per second of each class up to a view, readings that are due or not."""
    seen = {each.cls: each for each in view.classes}
    return {
        cls: each.read(
            seen[cls].finished if cls in seen else each.total,
            now_ns,
            seen[cls].accepted if cls in seen else each.accepted,
        ).accepted_rps
        for cls, each in known.items()
    }


def _seen(view: ClassView, now_ns: int, known: Arrivals | None, since_ns: int | None) -> Arrivals:
    ended, accepted = view.finished, view.accepted
    if known is None:
        first = Arrivals(now_ns, ended, accepted=accepted, present_ns=now_ns, kept=view.kept)
        if since_ns is None or now_ns <= since_ns or ended:
            return first
        # It is new: all of its requests have come since then.
        watched_s = min(HORIZON_S, (now_ns - since_ns) / 1e9)
        return replace(first, asked=accepted, asked_s=watched_s, past=accepted, past_s=watched_s)
    seen = known.seen(ended, now_ns, accepted)
    return seen if seen is known else replace(seen, present_ns=now_ns, kept=view.kept)
