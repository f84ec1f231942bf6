"""Expected losses of a placement: requests per second that miss their objective, by a fluid model.

Models with several homes are split so that loads are even; what each instance loses: `placement.rounds`.
"""

from collections.abc import Sequence
from typing import Final

from qlm.domain.ids import ModelId
from qlm.planner.placement.problem import Placement, PlacementProblem
from qlm.planner.placement.rounds import Turns, turns, work_of

SPREAD_RPS: Final = 0.002
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
        self._turns: dict[_Part, Turns] = {}
        self._shares: tuple[Placement, dict[tuple[int, ModelId], float]] = (), {}

    def shares(self, placement: Placement) -> dict[tuple[int, ModelId], float]:
        """Return the share of each model's requests on each of its instances, by index and model."""
        if self._shares[0] is not placement:
            self._shares = placement, split(self.problem, placement)
        return self._shares[1]

    def lost_rps(self, placement: Placement) -> float:
        """Return the expected losses of a placement, requests per second."""
        return sum(self._lost(placement, at) for at in range(len(placement)))

    def load(self, placement: Placement, at: int) -> float:
        """Return the load of one instance."""
        return self._turns_of(placement, at).load

    def loads(self, placement: Placement) -> list[float]:
        """Return the load of each instance."""
        return [self.load(placement, at) for at in range(len(placement))]

    def _lost(self, placement: Placement, at: int) -> float:
        here = self._turns_of(placement, at)
        return here.lost_rps + SPREAD_RPS * here.load**2 * (1 + here.worth_rps)

    def _turns_of(self, placement: Placement, at: int) -> Turns:
        shares = self.shares(placement)
        part = at, tuple([(model, shares[at, model]) for model in sorted(placement[at])])
        known = self._turns.get(part)
        if known is None:
            known = turns(self.problem.instances[at], dict(part[1]), self.problem.demands)
            self._turns[part] = known
        return known


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
        others[at] = sum(work_of(instance, of, problem.demands).values())
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
