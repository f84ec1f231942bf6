"""What the cold starts of a placement cost: requests that miss their objective once, not per second."""

from collections.abc import Mapping, Sequence
from typing import Final

from qlm.domain.ids import ModelId
from qlm.planner.placement.problem import ModelDemand, PlacedInstance, Placement, PlacementProblem
from qlm.planner.placement.rounds import lost_share
from qlm.planner.placement.score import Losses

SLACK_SHARE: Final = 0.7
"""Share of a slack that a cold start may take without losing the requests that come meanwhile."""

START_RPS: Final = 0.01
"""Price of a cold start per second: it pays for no trifle, and a burst may come meanwhile."""

BATCH_SHARE: Final = 0.1
"""Share of what an instance would serve during a cold start that no other can serve in time."""


class Starts:
    """Requests lost by the cold starts of new placements; each start is priced once."""

    def __init__(self, losses: Losses, loads: Sequence[float]) -> None:
        """Take the present state.

        Args:
            losses: Losses of the placements of the problem.
            loads: Present load of each instance: what it serves meanwhile if it did not start a model.
        """
        self._losses: Final = losses
        self._loads: Final = loads
        self._starts: dict[tuple[int, frozenset[ModelId]], tuple[float, ...]] = {}
        self._missed: dict[tuple[ModelId, str, tuple[float, ...]], float] = {}

    def lost(self, placement: Placement) -> float:
        """Return the requests lost by the cold starts of a placement."""
        started = [self._starts_s(at, models) for at, models in enumerate(placement)]
        if not any(started):
            return 0.0
        problem, shares = self._losses.problem, self._losses.shares(placement)
        ready, lost = _ready(problem, placement), START_RPS * sum(map(sum, started))
        for at, starts_s in enumerate(started):
            if not starts_s:
                continue
            for model in sorted(placement[at]):
                others = ready[model] - {at}
                if others:  # they serve its requests meanwhile, as far as they can
                    level = sum(self._losses.load(placement, other) for other in {at, *others}) / len(others)
                    each = problem.demands[model].worth_rps * lost_share(level) * sum(starts_s)
                else:
                    each = self._missed_by(model, problem.instances[at].kind, starts_s)
                lost += shares[at, model] * each
            left = problem.instances[at].loaded
            if left not in placement[at] and not ready.get(left):
                lost += _capacity_lost(
                    problem, problem.instances[at], min(1.0, self._loads[at]) * sum(starts_s)
                )
        return lost

    def _starts_s(self, at: int, models: frozenset[ModelId]) -> tuple[float, ...]:
        known = self._starts.get((at, models))
        if known is None:
            problem = self._losses.problem
            known = self._starts[at, models] = tuple(_starts_s(problem, problem.instances[at], models))
        return known

    def _missed_by(self, model: ModelId, kind: str, starts_s: tuple[float, ...]) -> float:
        known = self._missed.get((model, kind, starts_s))
        if known is None:
            demand = self._losses.problem.demands[model]
            service_s = demand.kinds[kind].service_s
            known = sum(_missed(demand, start_s, service_s) for start_s in starts_s)
            self._missed[model, kind, starts_s] = known
        return known


def _ready(problem: PlacementProblem, placement: Placement) -> Mapping[ModelId | None, set[int]]:
    """Return the homes of each model that need no cold start."""
    ready: dict[ModelId | None, set[int]] = {model: set() for model in problem.demands}
    for at, (instance, models) in enumerate(zip(problem.instances, placement, strict=True)):
        for model in (*instance.asleep, instance.loaded):
            if model in models:
                ready[model].add(at)
    return ready


def _starts_s(problem: PlacementProblem, instance: PlacedInstance, models: frozenset[ModelId]) -> list[float]:
    """Return the cold starts of an instance; one that has begun for a model without a home there goes on."""
    starts = {model for model in models if not instance.ready(model)}
    begun = instance.loaded if instance.starting else None
    if begun is not None and begun not in models and problem.on_kind(begun, instance.kind) is not None:
        starts.add(begun)
    return [problem.demands[model].kinds[instance.kind].cold_s for model in sorted(starts)]


def _missed(demand: ModelDemand, start_s: float, service_s: float) -> float:
    """Return the requests for a model that miss their objective since its instance starts another one.

    Of those that wait, each of which takes `service_s`, the last ones are late by the time of the start.
    """
    coming = sum(rate * max(0.0, start_s - SLACK_SHARE * slack_s) for slack_s, rate in demand.objectives)
    if not demand.waiting:
        return coming
    late_s = demand.waiting * service_s + start_s - SLACK_SHARE * demand.tightest_s
    most = min(float(demand.waiting), start_s / max(service_s, 1e-3))
    return coming + min(most, max(0.0, late_s) / max(service_s, 1e-3))


def _capacity_lost(problem: PlacementProblem, instance: PlacedInstance, busy_s: float) -> float:
    """Return the requests that the loaded model would serve in a time, and no other instance can."""
    left = instance.loaded
    on_kind = None if instance.starting or left is None else problem.on_kind(left, instance.kind)
    return 0.0 if on_kind is None else busy_s / max(on_kind.service_s, 1e-3) * BATCH_SHARE
