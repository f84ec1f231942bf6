"""Records what the estimator says of each request as it arrives, and of each group as it is formed."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final, TypeGuard

import numpy as np

from qlm.controller.estimating.forecast import Asked, Forecast, forecast
from qlm.controller.estimating.moment import Moment, moment
from qlm.controller.estimating.queues import estimates
from qlm.controller.estimating.state import NOTHING_LEARNED, learned
from qlm.controller.protocol import Decision
from qlm.domain.group import RequestClass
from qlm.domain.ids import GroupId, RequestId
from qlm.domain.plan_change import CreateGroup, PlanChange, ResizeGroup
from qlm.domain.request import RequestCard
from qlm.rct_estimator.completion_time import CompletionTime
from qlm.simulator.evaluation.oracle import Oracle, OracleForecast
from qlm.simulator.simulation import Onlooker, World
from qlm.simulator.world.clients import request_number

INTERVAL: Final = (0.05, 0.95)
"""Quantiles between which nine of ten are expected."""

_NO_SERVICE: Final = np.zeros(1)


@dataclass(frozen=True, slots=True)
class Interval:
    """A forecast time, seconds from the moment of the forecast.

    Attributes:
        mean: What is expected.
        low: 5 % are expected earlier.
        high: 5 % are expected later.
    """

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, time: CompletionTime) -> "Interval":
        """Read it off a distribution; no time is negative."""
        low, high = (max(0.0, time.quantile(share)) for share in INTERVAL)
        return cls(max(0.0, time.normal.mean), low, high)


@dataclass(slots=True, kw_only=True)
class RequestForecast:
    """What was said of one request when it arrived, and what happened.

    Attributes:
        number: Its row in the workload.
        at_ns: When it was said.
        wait: Until it has a place in a batch.
        first_token: Until its first token.
        completion: Until its end.
        oracle: What somebody who knows all lengths so far would have said.
        met: Probability that it meets its objective.
        started_ns: When it was first submitted to an engine.
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
    """What was said of one group when it was formed or sealed, and who was in it.

    Attributes:
        at_ns: When it was said.
        count: Requests in it then.
        completion: Until all of them have ended.
        members: Rows of the requests that were pulled for it.
    """

    at_ns: int
    count: int
    completion: Interval
    members: list[int] = field(default_factory=list)


def _is_new_or_whole(change: PlanChange) -> TypeGuard[CreateGroup | ResizeGroup]:
    """Whether a group begins, or will not grow any more."""
    return isinstance(change, CreateGroup) or (isinstance(change, ResizeGroup) and change.sealed)


class ForecastRecorder(Onlooker):
    """Forecasts every `every`-th request and each new group.

    Args:
        every: 1 for all; None for as many as `about` says.
        about: Number of requests to be forecast then.

    Attributes:
        requests: By row.
        groups: By id.
    """

    def __init__(self, every: int | None = 1, *, about: int = 4000) -> None:
        self.requests: dict[int, RequestForecast] = {}
        self.groups: dict[GroupId, GroupForecast] = {}
        self._given_every = every
        self._about = about
        self._estimator = NOTHING_LEARNED
        self._waiting: defaultdict[RequestClass, dict[int, None]] = defaultdict(dict)
        self._members: defaultdict[GroupId, list[int]] = defaultdict(list)

    def begin(self, world: World) -> None:
        """Get ready."""
        self._world = world
        self._every = self._given_every or max(1, len(world.workload) // self._about)
        self._oracle = Oracle(world)

    def arriving(self, number: int, card: RequestCard) -> None:
        """Forecast it as it would be told to its client."""
        if number % self._every == 0:
            now = self._moment()
            asked = Asked(cls=card.cls, prompt_tokens=card.prompt_tokens, max_tokens=card.sampling.max_tokens)
            told = forecast(now, asked)
            if told is not None:
                self._note(number, card.cls, now, told)
        self._waiting[card.cls][number] = None

    def leased(self, id: RequestId, group: GroupId | None) -> None:
        """Note who is in which group."""
        number = request_number(id)
        for waiting in self._waiting.values():
            if waiting.pop(number, 0) is None:
                break
        if group is not None:
            self._members[group].append(number)

    def submitted(self, id: RequestId, instance: int) -> None:
        """Note when its wait was over."""
        row = self.requests.get(request_number(id))
        if row is not None and row.started_ns is None:
            row.started_ns = self._world.parts.timeline.now_ns

    def decided(self, decision: Decision) -> None:
        """Take what the controller has learned; forecast groups when they are new, and again once sealed."""
        self._estimator = decision.estimator
        new = [change.id for change in decision.changes if _is_new_or_whole(change)]
        if not new:
            return
        now = self._moment()
        all_groups = {group.id: group for group, _ in now.groups}
        said = estimates(now)
        for id in new:
            estimate = said.of(id)
            if estimate is not None:
                mean, half = estimate.completion.mean, 1.645 * estimate.completion.var**0.5
                self.groups[id] = GroupForecast(
                    at_ns=now.now_ns,
                    count=all_groups[id].count,
                    completion=Interval(mean, max(0.0, mean - half), mean + half),
                    members=self._members[id],
                )

    def _moment(self) -> Moment:
        """Look at the cluster as the controller does."""
        now_ns, fleet = self._world.parts.timeline.now_ns, self._world.scenario.fleet
        view = self._world.parts.store.view(now_ns)
        self._estimator = learned(self._estimator, view, now_ns=now_ns, fleet=fleet)
        return moment(view, now_ns=now_ns, fleet=fleet, state=self._estimator)

    def _note(self, number: int, cls: RequestClass, now: Moment, told: Forecast) -> None:
        self.requests[number] = RequestForecast(
            number=number,
            at_ns=now.now_ns,
            wait=Interval.of(CompletionTime(told.wait, _NO_SERVICE)),
            first_token=Interval.of(told.first_token),
            completion=Interval.of(told.completion),
            oracle=self._oracle.forecast(number, cls, now, told, self._waiting),
            met=told.met,
        )
