"""Waiting requests of one model that can still meet their objective. All times are seconds from now.

The requests of a group count as evenly spaced between its first and its last arrival. Each has a latest
start: its deadline less the time from a start to what the objective is about.
"""

from collections.abc import Iterable
from dataclasses import dataclass

_INSTANT_S = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class HopefulRequests:
    """Requests with evenly spaced latest starts, in the order of service.

    Attributes:
        priority: Lower goes first.
        requests: Their number; a group of which some are lost already has a fraction of one at its edge.
        first_s: Latest start of the first, 0 or more.
        last_s: Latest start of the last.
        service_s: Time that one request adds to the wait of those behind it.
        objective_s: Time from an arrival to its deadline.
    """

    priority: int
    requests: float
    first_s: float
    last_s: float
    service_s: float
    objective_s: float

    @classmethod
    def of(
        cls,
        *,
        priority: int,
        requests: int,
        first_s: float,
        last_s: float,
        service_s: float,
        objective_s: float,
    ) -> "HopefulRequests | None":
        """Leave out requests whose latest start has passed; None if that is all of them."""
        if last_s < 0 or requests < 1:
            return None
        kept = float(requests)
        if first_s < 0:
            kept *= last_s / max(last_s - first_s, _INSTANT_S)
        return cls(
            priority=priority,
            requests=kept,
            first_s=max(0.0, first_s),
            last_s=last_s,
            service_s=service_s,
            objective_s=objective_s,
        )

    def lost(self, begin_s: float) -> float:
        """Return how many start too late if the first starts then, and each next one `service_s` later."""
        n = self.requests
        late_s = begin_s - self.first_s
        steps = max(n - 1, 0.0)
        # The r-th request (from 0) is late by `late_s` + r `growth_s`.
        growth_s = self.service_s - (self.last_s - self.first_s) / steps if steps else 0.0
        if abs(growth_s) < _INSTANT_S:
            return n if late_s > 0 else 0.0
        crossing = -late_s / growth_s
        lost = n - crossing if growth_s > 0 else crossing
        return min(n, max(0.0, lost))


class Backlog:
    """Waiting requests of one model, in the order of service.

    Attributes:
        parts: The hopeful requests, most urgent first.
        first_s: Earliest latest start; infinite without hopeful requests.
        work_s: Time to start them all.
        objective_s: Tightest objective; infinite without hopeful requests.
    """

    def __init__(self, parts: Iterable[HopefulRequests]) -> None:
        self.parts = sorted(parts, key=lambda part: (part.priority, part.first_s))
        self.first_s = min((part.first_s for part in self.parts), default=float("inf"))
        self.work_s = sum(part.requests * part.service_s for part in self.parts)
        self.objective_s = min((part.objective_s for part in self.parts), default=float("inf"))

    def __bool__(self) -> bool:
        """Return True if any request can still be in time."""
        return bool(self.parts)

    def lost(self, begin_s: float) -> float:
        """Return how many requests start too late if the service of the model begins at `begin_s`."""
        lost, at_s = 0.0, begin_s
        for part in self.parts:
            lost += part.lost(at_s)
            at_s += part.requests * part.service_s
        return lost


NO_BACKLOG = Backlog(())
"""Of a model without hopeful requests."""
