"""How fast requests of each class come, so that what will follow or overtake those that wait can be told.

Counted as they end: a burst that still waits is no rate, and a class that is served at once ends as fast
as it arrives. One that is not is told too slow; then it is not the one that overtakes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from qlm.domain.group import RequestClass
from qlm.domain.view import ClassView, ClusterView

READ_EVERY_S: Final = 10.0
"""A class is counted this often at most."""

HORIZON_S: Final = 120.0
"""Arrivals so long ago count 1/e of those now."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Arrivals of one class, older ones weigh less.

    Attributes:
        seen_ns: When they were last counted.
        total: Requests of the class that had ended then.
        count: Those that ended since the first look.
        exposure_s: Time in which they did.
    """

    seen_ns: int
    total: int
    count: float = 0.0
    exposure_s: float = 0.0

    @property
    def rate_rps(self) -> float:
        """Arrivals per second; 0 before there is anything to say."""
        return self.count / self.exposure_s if self.exposure_s else 0.0

    def seen(self, total: int, now_ns: int) -> "Arrivals":
        """Count again."""
        passed_s = (now_ns - self.seen_ns) / 1e9
        if passed_s < READ_EVERY_S:
            return self
        keep = math.exp(-passed_s / HORIZON_S)
        new = max(0, total - self.total)
        return Arrivals(now_ns, total, keep * self.count + new, keep * self.exposure_s + passed_s)


def arrivals(
    view: ClusterView, now_ns: int, before: Mapping[RequestClass, Arrivals]
) -> Mapping[RequestClass, Arrivals]:
    """Count the classes in a view; `before` itself if it is too soon for all of them."""
    after = {each.cls: _seen(each, now_ns, before.get(each.cls)) for each in view.classes}
    same = len(after) == len(before) and all(before.get(cls) is known for cls, known in after.items())
    return before if same else after


def _seen(view: ClassView, now_ns: int, known: Arrivals | None) -> Arrivals:
    total = view.finished
    return Arrivals(now_ns, total) if known is None else known.seen(total, now_ns)
