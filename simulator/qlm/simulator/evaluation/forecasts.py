"""Recorder of the estimator's forecasts: of requests at arrival, and of groups when formed."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final, TypeGuard

import numpy as np

from qlm.controller.core.decide import Decision
from qlm.controller.core.estimating.forecast import Forecast, ForecastQuery, forecast
from qlm.controller.core.estimating.queues import estimates
from qlm.controller.core.estimating.snapshot import Snapshot, take_snapshot
from qlm.controller.core.estimating.state import NOTHING_LEARNED, learn
from qlm.domain.group import RequestClass
from qlm.domain.ids import GroupId, RequestId
from qlm.domain.plan_change import CreateGroup, PlanChange, ResizeGroup
from qlm.domain.request import RequestMetadata
from qlm.rct_estimator.completion_time import CompletionTime
from qlm.simulator.cluster.clients import request_number
from qlm.simulator.evaluation.oracle import Oracle, OracleForecast
from qlm.simulator.simulation import Simulation, SimulationObserver
from qlm.store.core.plans import view

INTERVAL: Final = (0.05, 0.95)
"""Quantiles of the 90 % interval."""

_NO_SERVICE: Final = np.zeros(1)


@dataclass(frozen=True, slots=True)
class Interval:
    """Forecast of a time, seconds from the forecast.

    Attributes:
        low: 5 % quantile.
        high: 95 % quantile.
    """

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, time: CompletionTime) -> "Interval":
        """Build from a distribution; no time is negative."""
        low, high = (max(0.0, time.quantile(share)) for share in INTERVAL)
        return cls(max(0.0, time.normal.mean), low, high)


@dataclass(slots=True, kw_only=True)
class RequestForecast:
    """Forecast of one request at its arrival, and its start.

    Attributes:
        number: Row in the workload.
        at_ns: Time of the forecast.
        wait: Time until it has a batch slot.
        first_token: Time until its first token.
        completion: Time until its end.
        oracle: Forecast with known output lengths.
        met: Probability that it meets its objective.
        started_ns: Time of its first submission to an engine.
    """

    number: int
    at_ns: int
    wait: Interval
    first_token: Interval
    completion: Interval
    oracle: OracleForecast
    met: float
    started_ns: int | None = None


@dataclass(slots=True, kw_only=True)
class GroupForecast:
    """Forecast of one group when it was formed or sealed.

    Attributes:
        at_ns: Time of the forecast.
        count: Number of requests at that time.
        completion: Time until all of them have ended.
        members: Rows of the requests pulled for it.
    """

    at_ns: int
    count: int
    completion: Interval
    members: list[int] = field(default_factory=list)


def _is_new_or_whole(change: PlanChange) -> TypeGuard[CreateGroup | ResizeGroup]:
    """Return whether a group is new, or will not grow any more."""
    return isinstance(change, CreateGroup) or (isinstance(change, ResizeGroup) and change.sealed)


class ForecastRecorder(SimulationObserver):
    """Observer that forecasts every `every`-th request and each new group.

    Args:
        every: 1 for all; None to choose it from `about`.
        about: Approximate number of requests to forecast.

    Attributes:
        requests: Forecasts by row.
        groups: Forecasts by group id.
    """

    def __init__(self, every: int | None = 1, *, about: int = 4000) -> None:
        self.requests: dict[int, RequestForecast] = {}
        self.groups: dict[GroupId, GroupForecast] = {}
        self._given_every = every
        self._about = about
        self._estimator = NOTHING_LEARNED
        self._waiting: defaultdict[RequestClass, dict[int, None]] = defaultdict(dict)
        self._members: defaultdict[GroupId, list[int]] = defaultdict(list)

    def on_start(self, simulation: Simulation) -> None:
        """Prepare for the workload."""
        self._simulation = simulation
        self._every = self._given_every or max(1, len(simulation.workload) // self._about)
        self._oracle = Oracle(simulation)
        self._estimator = simulation.controller.estimator

    def on_published(self, number: int, metadata: RequestMetadata) -> None:
        """Forecast the request as for its client."""
        if number % self._every == 0:
            now = self._snapshot()
            request = ForecastQuery(
                cls=metadata.cls,
                prompt_tokens=metadata.prompt_tokens,
                max_tokens=metadata.sampling.max_tokens,
            )
            estimate = forecast(now, request)
            if estimate is not None:
                self._note(number, metadata.cls, now, estimate)
        self._waiting[metadata.cls][number] = None

    def on_leased(self, id: RequestId, group: GroupId | None) -> None:
        """Keep the group that each request was pulled for."""
        number = request_number(id)
        for waiting in self._waiting.values():
            if waiting.pop(number, 0) is None:
                break
        if group is not None:
            self._members[group].append(number)

    def on_submitted(self, id: RequestId, instance: int) -> None:
        """Record the end of the request's wait."""
        row = self.requests.get(request_number(id))
        if row is not None and row.started_ns is None:
            row.started_ns = self._simulation.services.event_queue.now_ns

    def on_decided(self, decision: Decision) -> None:
        """Take the controller's estimator state; forecast groups when they are new, and again when sealed."""
        self._estimator = decision.estimator
        new = [change.id for change in decision.changes if _is_new_or_whole(change)]
        if not new:
            return
        now = self._snapshot()
        all_groups = {group.id: group for group, _ in now.groups}
        group_estimates = estimates(now)
        for id in new:
            estimate = group_estimates.of(id)
            if estimate is not None:
                mean, half = estimate.completion.mean, 1.645 * estimate.completion.var**0.5
                self.groups[id] = GroupForecast(
                    at_ns=now.now_ns,
                    count=all_groups[id].count,
                    completion=Interval(mean, max(0.0, mean - half), mean + half),
                    members=self._members[id],
                )

    def _snapshot(self) -> Snapshot:
        """Return a snapshot of the cluster, as the controller sees it."""
        now_ns, fleet = self._simulation.services.event_queue.now_ns, self._simulation.scenario.fleet
        seen = view(self._simulation.services.state, now_ns)
        self._estimator = learn(self._estimator, seen, now_ns=now_ns, fleet=fleet)
        return take_snapshot(seen, now_ns=now_ns, fleet=fleet, state=self._estimator)

    def _note(self, number: int, cls: RequestClass, now: Snapshot, estimate: Forecast) -> None:
        self.requests[number] = RequestForecast(
            number=number,
            at_ns=now.now_ns,
            wait=Interval.of(CompletionTime(estimate.wait, _NO_SERVICE)),
            first_token=Interval.of(estimate.first_token),
            completion=Interval.of(estimate.completion),
            oracle=self._oracle.forecast(number, cls, now, estimate, self._waiting),
            met=estimate.met,
        )
