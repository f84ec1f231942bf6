"""Dual prices of groups by incremental subgradient ascent: lane types take turns, as bidders do."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from qlm.planner.arrays import Floats, Ints
from qlm.planner.certify.master import Column
from qlm.planner.certify.pricing import Space, cheapest_queue
from qlm.planner.certify.tracing import Found, traced_queue
from qlm.planner.certify.tracks import Tracks

FIRST_STEP: Final = 0.1
"""First step: change of a price for a whole request too few or too many, over the worth of the group."""

HALVED_AFTER: Final = 10
"""Passes after which the step is half of the first."""

KEPT_PASSES: Final = 10
"""Last passes whose queues are kept for the master program."""

Over = Callable[[], bool]
"""Tells that time is over."""


@dataclass(slots=True, eq=False)
class Pricing:
    """Prices queues of all lane types, one after the other, in shared work space."""

    tracks: Tracks
    _space: Space | None = field(default=None)

    def best(self, k: int, prices: Floats) -> tuple[float, Found]:
        """Return the least reduced cost of a queue of a type, and that queue."""
        track, charges = self.tracks.tracks[k], self.tracks.charges[k]
        space, own = (
            self._space_for(charges.shape[1], len(track.begins) - 1, 1 << track.marks),
            prices[track.groups],
        )
        value = cheapest_queue(track, charges, own, space)
        return value, traced_queue(track, charges, own, space)

    def _space_for(self, steps: int, models: int, marks: int) -> Space:
        if self._space is None or self._space.stay.shape[2] != marks:
            self._space = Space(np.empty((steps, models, marks)), np.empty((steps, models, marks)))
        return self._space


def bound_at(tracks: Tracks, prices: Floats, values: Floats) -> float:
    """Return the Lagrangian bound of the priced groups; `values` are the least reduced costs by type."""
    counts = np.array([len(each) for each in tracks.members])
    return float(prices.sum() + counts @ values)


def ascend(
    pricing: Pricing, prices: Floats, worth_s: Floats, passes: int, order: Callable[[int], Ints], over: Over
) -> tuple[Floats, list[Column]]:
    """Improve prices by passes over the lane types.

    Args:
        pricing: Of the problem.
        prices: To start from.
        worth_s: Scale of each price: what the group costs if it is late.
        passes: Number of passes.
        order: Order of the types in a pass.
        over: Tells that time is over.

    Returns:
        The average of the later half, and the queues of the last passes.
    """
    tracks, prices = pricing.tracks, prices.copy()
    counts = np.array([len(each) for each in tracks.members])
    runs = np.zeros(len(prices))
    for track, count in zip(tracks.tracks, counts, strict=True):
        runs[track.groups] += count
    total, summed = np.zeros(len(prices)), 0
    kept: list[Column] = []
    for turn in range(passes):
        step = FIRST_STEP / (1.0 + turn / HALVED_AFTER)
        for k in order(turn):
            if over():
                return (total / summed if summed else prices), kept
            own = tracks.tracks[k].groups
            _, found = pricing.best(int(k), prices)
            change = counts[k] / runs[own]
            np.subtract.at(change, found.order, counts[k])
            prices[own] += step * worth_s[own] * change
            np.clip(prices, tracks.floor_s, tracks.ceiling_s, out=prices)
            if turn >= passes // 2:
                total, summed = total + prices, summed + 1
            if turn >= passes - KEPT_PASSES:
                kept.append(Column.of(tracks, int(k), found))
    return (total / summed if summed else prices), kept
