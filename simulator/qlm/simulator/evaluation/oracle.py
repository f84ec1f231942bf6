"""Oracle forecasts with known output lengths: the irreducible part of the forecast error."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import Final

from qlm.controller.core.estimating.forecast import Forecast
from qlm.controller.core.estimating.snapshot import Snapshot
from qlm.domain.group import RequestClass
from qlm.domain.ids import InstanceId
from qlm.simulator.cluster.clients import request_number
from qlm.simulator.simulation import Simulation

Waiting = Mapping[RequestClass, Mapping[int, None]]
"""Rows of the waiting requests of each class, in the order of their arrival."""


@dataclass(frozen=True, slots=True)
class OracleForecast:
    """Forecast of one request, seconds; NaN where the oracle has none.

    Attributes:
        queued: All batch slots are used or will be used by requests before it.
        wait_s: Time until it has a batch slot.
        completion_s: Time until its end.
    """

    queued: bool
    wait_s: float
    completion_s: float


NO_FORECAST: Final = OracleForecast(queued=False, wait_s=math.nan, completion_s=math.nan)
"""Result for a request whose instance or class is not known well enough."""


class Oracle:
    """Simulates a batch that serves the running and waiting requests before a request, with known lengths.

    Its speed is that of the estimator's steady state. Later arrivals, reordering and model swaps are ignored.
    """

    def __init__(self, simulation: Simulation) -> None:
        work = simulation.workload
        self._simulation = simulation
        self._tokens = [min(*pair) for pair in zip(work.output_tokens, work.max_tokens, strict=True)]
        self._number = {each.id: number for number, each in enumerate(simulation.fleet.instances)}

    def forecast(
        self, number: int, cls: RequestClass, now: Snapshot, estimate: Forecast, waiting: Waiting
    ) -> OracleForecast:
        """Forecast one request that arrives now.

        Args:
            number: Row in the workload.
            cls: Class of the request.
            now: Snapshot of the cluster.
            estimate: The estimator's forecast, which names the instance.
            waiting: Waiting requests by class.
        """
        instance = now.instances[estimate.instance]
        entry = now.state.times.entries.get((cls, instance.status.accelerator))
        predecessors = self._predecessors(cls, now, estimate.instance, waiting)
        if entry is None or predecessors is None or instance.loaded != cls.model:
            return NO_FORECAST
        state = entry.on_kind.state.corrected(instance.correction)
        places = max(1, round(state.batch))
        running = self._remaining_tokens(estimate.instance)
        iterations = _start(running, (self._tokens[each] for each in predecessors), places)
        wait_s = max(iterations * state.iteration_s, len(predecessors) * state.prompt_s)
        own_s = state.prefill_s + (self._tokens[number] - 1) * state.iteration_s
        queued = len(running) + len(predecessors) >= places
        return OracleForecast(queued=queued, wait_s=wait_s, completion_s=wait_s + own_s)

    def _remaining_tokens(self, instance: InstanceId) -> list[int]:
        """Return the remaining tokens of an agent's requests."""
        agent = self._simulation.fleet.agent(self._number[instance])
        tracked = agent.state.requests.all.values() if agent else ()
        return [max(1, self._tokens[request_number(each.request.id)] - len(each.output)) for each in tracked]

    def _predecessors(
        self, cls: RequestClass, now: Snapshot, instance: InstanceId, waiting: Waiting
    ) -> list[int] | None:
        """Return the rows of waiting requests that the instance serves first; None if a swap is needed."""
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


def _start(running: list[int], predecessors: Iterable[int], places: int) -> int:
    """Return the iteration in which a request after all `predecessors` gets a batch slot."""
    busy = sorted(running)[:places] + [0] * max(0, places - len(running))
    late = sorted(running)[places:]
    heapify(busy)
    for tokens in (*late, *predecessors):
        heapreplace(busy, busy[0] + tokens)
    return busy[0]
