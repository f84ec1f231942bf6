"""Waiting requests of one model that can still be in time. All times are seconds from now.

The requests of a group count as evenly spaced between its first and its last arrival. Each has a latest
start: its deadline less the time from a start to what the objective is about.

Late requests and batch work have no deadline any more, but a patience: each time it has run out again, they
count as lost by a weight, the more the longer they wait.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_INSTANT_S = 1e-9

LATE_PATIENCE_SHARE: Final = 0.5
"""Least patience for late requests, as a share of that for batch work."""

LATE_PATIENCE_OBJECTIVES: Final = 3.0
"""Patience of late requests in objectives, if that is more."""

DEFERRABLE_WORK_MAX_S: Final = 10.0
"""Work without a deadline that a visit counts with at most: deadlines end it, not that work."""

DELAY_MAX_S: Final = 30.0
"""Longest delay of the others that a departure is weighed against. With objectives of many minutes, half of
one would count all that waits as saved by leaving now, and no visit would last until its answers end."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long late and batch requests may wait.

    Attributes:
        batch_s: Patience of a request without an objective.
        weight: Worth of a request when its patience runs out for the first time, in missed objectives.
    """

    batch_s: float
    weight: float

    def of(self, objective_s: float | None) -> float:
        """Return the patience of a late request with that objective, or of batch work."""
        if objective_s is None:
            return self.batch_s
        return max(LATE_PATIENCE_SHARE * self.batch_s, LATE_PATIENCE_OBJECTIVES * objective_s)


def in_time(requests: float, first_s: float, last_s: float) -> float:
    """Return how many requests can still be in time, of some with evenly spaced latest starts."""
    if last_s < 0:
        return 0.0
    return requests if first_s >= 0 else requests * last_s / max(last_s - first_s, _INSTANT_S)


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
        weight: Worth of one, in missed objectives.
        deferrable: They are late or have no objective: served after those with one.
        matured: Worth of one of these by the time that it has waited so far.
    """

    priority: int
    requests: float
    first_s: float
    last_s: float
    service_s: float
    objective_s: float
    weight: float = 1.0
    deferrable: bool = False
    matured: float = 0.0

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
        return cls(
            priority=priority,
            requests=in_time(float(requests), first_s, last_s),
            first_s=max(0.0, first_s),
            last_s=last_s,
            service_s=service_s,
            objective_s=objective_s,
        )

    @classmethod
    def deferred(
        cls,
        patience: Patience,
        *,
        priority: int,
        requests: int,
        waits_s: float,
        spread_s: float,
        service_s: float,
        objective_s: float | None,
    ) -> "HopefulRequests | None":
        """Return late or batch requests, with the next end of their patience as deadline; None if worthless.

        Args:
            patience: How long they may wait.
            priority: Lower goes first.
            requests: Their number.
            waits_s: Time since the first arrived.
            spread_s: Time from the first arrival to the last.
            service_s: Time that one request adds to the wait of those behind it.
            objective_s: Objective that they missed; None for batch work.
        """
        patience_s = patience.of(objective_s)
        times = int(max(0.0, waits_s) / patience_s) + 1
        if patience.weight <= 0 or requests < 1:
            return None
        first_s = times * patience_s - max(0.0, waits_s)
        return cls(
            priority=priority,
            requests=float(requests),
            first_s=first_s,
            last_s=first_s + spread_s,
            service_s=service_s,
            objective_s=patience_s,
            weight=times * patience.weight,
            deferrable=True,
            matured=patience.weight * max(0.0, waits_s - spread_s / 2) / patience_s,
        )

    @property
    def worth(self) -> float:
        """All of them, in missed objectives."""
        return self.requests * self.weight

    def lost(self, begin_s: float) -> float:
        """Return the worth of those that start too late if the first starts then, and the next in turn."""
        n = self.requests
        late_s = begin_s - self.first_s
        steps = max(n - 1, 0.0)
        # The r-th request (from 0) is late by `late_s` + r `growth_s`.
        growth_s = self.service_s - (self.last_s - self.first_s) / steps if steps else 0.0
        if abs(growth_s) < _INSTANT_S:
            return self.worth if late_s > 0 else 0.0
        crossing = -late_s / growth_s
        lost = n - crossing if growth_s > 0 else crossing
        return self.weight * min(n, max(0.0, lost))


class Backlog:
    """Waiting requests of one model, in the order of service.

    Attributes:
        parts: The requests, most urgent first.
        first_s: Earliest latest start of a part that is worth a request; infinite without one.
        work_s: Time to start them all, at most `DEFERRABLE_WORK_MAX_S` of it for late and batch requests.
        objective_s: Tightest objective; infinite without hopeful requests.
    """

    def __init__(self, parts: Iterable[HopefulRequests]) -> None:
        self.parts = sorted(parts, key=lambda part: (part.priority, part.deferrable, part.first_s))
        worthy = (part.first_s for part in self.parts if part.worth >= 1)
        self.first_s = min(worthy, default=float("inf"))
        deferrable_s = sum(part.requests * part.service_s for part in self.parts if part.deferrable)
        timed_s = sum(part.requests * part.service_s for part in self.parts if not part.deferrable)
        self.work_s = timed_s + min(DEFERRABLE_WORK_MAX_S, deferrable_s)
        self.objective_s = min((part.objective_s for part in self.parts), default=float("inf"))

    def __bool__(self) -> bool:
        """Return True if any request can still be in time."""
        return bool(self.parts)

    @property
    def worth(self) -> float:
        """All requests, in missed objectives."""
        return sum(part.worth for part in self.parts)

    def gained(self, begin_s: float) -> float:
        """Return the worth of the requests that a service from then on gains: also late and batch ones."""
        gained, at_s = 0.0, begin_s
        for part in self.parts:
            gained += part.worth if part.deferrable else part.worth - part.lost(at_s)
            at_s += part.requests * part.service_s
        return gained

    def urgent(self, begin_s: float) -> float:
        """Return the worth of the requests that a later service does not gain, only one from then on.

        Late and batch ones are worth the more, the longer they have waited.
        """
        urgent, at_s = 0.0, begin_s
        for part in self.parts:
            if part.deferrable:
                urgent += part.requests * part.matured
            else:
                urgent += part.lost(at_s + DELAY_MAX_S) - part.lost(at_s)
            at_s += part.requests * part.service_s
        return urgent

    def any_in_time(self, begin_s: float) -> bool:
        """Return whether some request with an objective can meet it even if served only from then on."""
        at_s = begin_s
        for part in self.parts:
            if not part.deferrable and part.lost(at_s) < part.worth:
                return True
            at_s += part.requests * part.service_s
        return False

    def lost(self, begin_s: float) -> float:
        """Return the worth of the requests that start too late if the service of the model begins then."""
        lost, at_s = 0.0, begin_s
        for part in self.parts:
            lost += part.lost(at_s)
            at_s += part.requests * part.service_s
        return lost


NO_BACKLOG = Backlog(())
"""Of a model without hopeful requests."""
