"""Expected losses of a placement: requests per second that miss their objective, by a fluid model.

An instance with several models serves them in rounds of visits. A round must fit into the tightest slack, and
each swap takes its time and discards what runs. So the load of an instance is the work of its models, and
the share of a round that goes to swaps.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from qlm.domain.ids import ModelId
from qlm.planner.placement.problem import ModelDemand, PlacedInstance, Placement, PlacementProblem

ROUND_SHARE: Final = 0.8
"""Share of the tightest slack that a round of visits may take."""

FULL: Final = 0.85
"""Load from which an instance loses requests: arrivals come in bursts."""

CORNER: Final = 0.1
"""Width of the rise of the losses around `FULL`: near it, bursts already cost some requests."""

SPREAD_RPS: Final = 0.02
"""Weight of the squared load: of placements without losses, the even one has reserves."""

ROUNDS: Final = 3
"""Iterations of the split of models over their instances."""


_Part = tuple[int, tuple[tuple[ModelId, float], ...]]
"""Index of an instance, and its models with their shares."""


class Losses:
    """Expected losses of placements of one problem; those of an instance are computed once.

    Most placements that a search looks at differ in one or two instances.
    """

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem: Final = problem
        self._lost_rps: dict[_Part, float] = {}
        self._loads: dict[_Part, float] = {}
        self._shares: tuple[Placement, dict[tuple[int, ModelId], float]] = (), {}

    def shares(self, placement: Placement) -> dict[tuple[int, ModelId], float]:
        """Return the share of each model's requests on each of its instances, by index and model."""
        if self._shares[0] is not placement:
            self._shares = placement, split(self.problem, placement)
        return self._shares[1]

    def lost_rps(self, placement: Placement) -> float:
        """Return the expected losses of a placement, requests per second."""
        return sum(self._lost(self._part(placement, at)) for at in range(len(placement)))

    def load(self, placement: Placement, at: int) -> float:
        """Return the load of one instance."""
        part = self._part(placement, at)
        load = self._loads.get(part)
        if load is None:
            load = load_of(self.problem.instances[at], dict(part[1]), self.problem.demands)
            self._loads[part] = load
        return load

    def loads(self, placement: Placement) -> list[float]:
        """Return the load of each instance."""
        return [self.load(placement, at) for at in range(len(placement))]

    def _part(self, placement: Placement, at: int) -> _Part:
        shares = self.shares(placement)
        return at, tuple([(model, shares[at, model]) for model in sorted(placement[at])])

    def _lost(self, part: _Part) -> float:
        lost = self._lost_rps.get(part)
        if lost is None:
            at, here = part
            lost = _instance_lost_rps(self.problem.instances[at], dict(here), self.problem.demands)
            self._lost_rps[part] = lost
        return lost


def split(problem: PlacementProblem, placement: Placement) -> dict[tuple[int, ModelId], float]:
    """Return the share of each model's requests on each of its instances, by index and model."""
    homes: dict[ModelId, list[int]] = {}
    for at, models in enumerate(placement):
        for model in models:
            homes.setdefault(model, []).append(at)
    shares = {(at, model): 1 / len(of) for model, of in homes.items() for at in of}
    several = [model for model, of in homes.items() if len(of) > 1]
    for _ in range(ROUNDS if several else 0):
        for model in several:
            _level(problem, placement, shares, model, homes[model])
    return shares


def _level(
    problem: PlacementProblem,
    placement: Placement,
    shares: dict[tuple[int, ModelId], float],
    model: ModelId,
    homes: Sequence[int],
) -> None:
    """Split one model so that the loads of its instances are as even as it can make them."""
    demand = problem.demands[model]
    others, each = {}, {}
    for at in homes:
        instance = problem.instances[at]
        of = {other: shares[at, other] for other in placement[at] if other != model}
        others[at] = _work(instance, of, problem.demands)
        each[at] = max(1e-9, demand.rate_rps * demand.kinds[instance.kind].service_s)
    level = _water_level([(others[at], each[at]) for at in homes])
    for at in homes:
        shares[at, model] = max(0.0, level - others[at]) / each[at]


def _water_level(basins: Sequence[tuple[float, float]]) -> float:
    """Return the level at which shares of one request stream, each worth `width`, fill basins to it."""
    level, filled, widths = 0.0, 0.0, 0.0
    for floor, width in sorted(basins):
        if widths and (floor - level) * widths + filled >= 1.0:
            break
        filled += (floor - level) * widths if widths else 0.0
        level, widths = floor, widths + 1 / width
    return level + (1.0 - filled) / widths


def _work(
    instance: PlacedInstance, shares: Mapping[ModelId, float], demands: Mapping[ModelId, ModelDemand]
) -> float:
    """Return the instance time per second that models need, without swaps."""
    return sum(
        share * demands[model].rate_rps * demands[model].kinds[instance.kind].service_s
        for model, share in shares.items()
    )


def load_of(
    instance: PlacedInstance, shares: Mapping[ModelId, float], demands: Mapping[ModelId, ModelDemand]
) -> float:
    """Return the load of an instance, swaps included."""
    work = _work(instance, shares, demands)
    tightest_s = min((demands[model].tightest_s for model in shares), default=float("inf"))
    if len(shares) < 2 or tightest_s == float("inf"):
        return work
    return work + round_swaps_s(instance, shares, demands) / (ROUND_SHARE * tightest_s)


def round_swaps_s(
    instance: PlacedInstance, shares: Mapping[ModelId, float], demands: Mapping[ModelId, ModelDemand]
) -> float:
    """Return the time of one round that goes to swaps and to what they discard."""
    here = {model: demands[model].kinds[instance.kind] for model in shares}
    asleep_bytes = sum(each.weights_bytes for each in here.values())
    asleep_bytes -= max((each.weights_bytes for each in here.values()), default=0)
    fits = asleep_bytes <= instance.host_memory_bytes
    swaps_s = sum(each.warm_s if fits else each.reload_s for each in here.values())
    refill_s = sum(
        share * demands[model].rate_rps * here[model].answer_s * here[model].recompute_s
        for model, share in shares.items()
    )
    return swaps_s + refill_s


def _instance_lost_rps(
    instance: PlacedInstance, shares: Mapping[ModelId, float], demands: Mapping[ModelId, ModelDemand]
) -> float:
    if not shares:
        return 0.0
    load = load_of(instance, shares, demands)
    worth_rps = sum(share * demands[model].worth_rps for model, share in shares.items())
    return worth_rps * lost_share(load) + SPREAD_RPS * load**2 * (1 + worth_rps)


def lost_share(load: float) -> float:
    """Return the share of requests that are late at a load: max(0, 1 - FULL / load) with a smooth corner."""
    over = (load - FULL) / CORNER
    excess = CORNER * (over if over > 30 else math.log1p(math.exp(over)))
    return excess / (FULL + excess)
