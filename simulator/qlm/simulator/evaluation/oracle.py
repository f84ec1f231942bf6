"""What somebody who knows every length beforehand would forecast: how much doubt nobody could avoid."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import Final

from qlm.controller.estimating.forecast import Forecast
from qlm.controller.estimating.moment import Moment
from qlm.domain.group import RequestClass
from qlm.domain.ids import InstanceId
from qlm.simulator.simulation import World
from qlm.simulator.world.clients import request_number

Waiting = Mapping[RequestClass, Mapping[int, None]]
"""Rows of the waiting requests of each class, in the order of their arrival."""


@dataclass(frozen=True, slots=True)
class OracleForecast:
    """Seconds from the moment of the forecast; NaN where the oracle cannot tell.

    Attributes:
        queued: Whether all places are taken or spoken for, so that it has to wait for an end.
        wait_s: Until it has a place.
        completion_s: Until its end.
    """

    queued: bool
    wait_s: float
    completion_s: float


UNTOLD: Final = OracleForecast(queued=False, wait_s=math.nan, completion_s=math.nan)
"""There is nothing to go by."""


class Oracle:
    """Serves what runs and waits before a request on paper, with the lengths as they will be.

    The pace is that of the estimator's steady state: only lengths are known beforehand. What may yet
    arrive or be re-ordered is not, and model swaps are not looked into.
    """

    def __init__(self, world: World) -> None:
        work = world.workload
        self._world = world
        self._tokens = [min(*pair) for pair in zip(work.output_tokens, work.max_tokens, strict=True)]
        self._number = {each.id: number for number, each in enumerate(world.fleet.instances)}

    def forecast(
        self, number: int, cls: RequestClass, now: Moment, told: Forecast, waiting: Waiting
    ) -> OracleForecast:
        """Forecast one request that arrives now.

        Args:
            number: Its row in the workload.
            cls: Its class.
            now: The cluster as the estimator sees it.
            told: What the estimator says: the instance is taken from it.
            waiting: Who waits.
        """
        instance = now.instances[told.instance]
        entry = now.state.times.entries.get((cls, instance.status.accelerator))
        ahead = self._ahead(cls, now, told.instance, waiting)
        if entry is None or ahead is None or instance.loaded != cls.model:
            return UNTOLD
        state = entry.on_kind.state.corrected(instance.correction)
        places = max(1, round(state.batch))
        running = self._left(told.instance)
        iterations = _start(running, (self._tokens[each] for each in ahead), places)
        wait_s = max(iterations * state.iteration_s, len(ahead) * state.prompt_s)
        own_s = state.prefill_s + (self._tokens[number] - 1) * state.iteration_s
        queued = len(running) + len(ahead) >= places
        return OracleForecast(queued=queued, wait_s=wait_s, completion_s=wait_s + own_s)

    def _left(self, instance: InstanceId) -> list[int]:
        """Tokens left of what an agent holds, running or about to."""
        agent = self._world.fleet.agent(self._number[instance])
        held = agent.held.values() if agent else ()
        return [max(1, self._tokens[request_number(h.request.id)] - len(h.output)) for h in held]

    def _ahead(
        self, cls: RequestClass, now: Moment, instance: InstanceId, waiting: Waiting
    ) -> list[int] | None:
        """Rows of the waiting requests that its instance serves before it; None if a swap comes between."""
        queue = list(now.instances[instance].queue)
        own = [at for at, group in enumerate(queue) if group.cls == cls]
        before = queue[: own[-1] + 1] if own else queue
        if any(group.cls.model != cls.model for group in before):
            return None
        first: dict[str, int] = {}
        covered: dict[RequestClass, int] = {}
        for group, _ in now.groups:
            first[group.id] = covered.get(group.cls, 0)
            covered[group.cls] = first[group.id] + group.remaining
        rows: list[int] = []
        for group in before:
            members = list(waiting.get(group.cls, ()))
            rows += members[first[group.id] : first[group.id] + group.remaining]
        return rows + list(waiting.get(cls, ()))[covered.get(cls, 0) :]


def _start(running: list[int], ahead: Iterable[int], places: int) -> int:
    """When the next request after all of `ahead` gets a place, in iterations."""
    busy = sorted(running)[:places] + [0] * max(0, places - len(running))
    late = sorted(running)[places:]
    heapify(busy)
    for tokens in (*late, *ahead):
        heapreplace(busy, busy[0] + tokens)
    return busy[0]
