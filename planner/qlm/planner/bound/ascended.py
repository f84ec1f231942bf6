"""The relaxation bounded quickly, for problems of any size: prices by ascent, their value proven."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from qlm.planner.arrays import Floats, Ints
from qlm.planner.bound.ascent import ascend
from qlm.planner.bound.dual import charge_table, model_prices, proven_value, reserve, tabulated_value
from qlm.planner.bound.grid import edges_until
from qlm.planner.bound.relaxation import Relaxation

PRICE_GROWTH: Final = 0.05
"""Steps of prices are longer than the ones before by this share."""

TOLERANCE: Final = 1e-3
"""What the proof of a value may give away, as a share of that value."""

FINER_STEP: Final = 0.1
"""First step of an ascent that starts from good prices, over that of one from scratch."""

FINER_PASSES: Final = 3
"""Turns in such an ascent, over those of one from scratch."""

GOLDEN: Final = 0.6180339887498949


def ascended_value(relaxed: Relaxation, passes: int, *, finer: Relaxation | None = None) -> float:
    """Bound a relaxation; the better the prices found, the tighter.

    Args:
        relaxed: With at least one group.
        passes: Turns of each group in the ascent; with less than 2 all groups are alone.
        finer: The same problem with finer lane types, if these are to be bounded: they start from the
            prices found for the others.

    Returns:
        Seconds; at most the optimum of the (finer) relaxation.
    """
    ascent = _Ascent.of(relaxed, edges_until(relaxed.soon_s, PRICE_GROWTH))
    zero = ascent.worthless
    candidates = [zero]
    if passes >= 2:
        candidates.append(ascent.climbed(zero, passes, ascent.step))
    if finer is None:
        return ascent.best_value(candidates)
    fine = _Ascent.of(finer, ascent.edges)
    of_kind = {int(kind): k for k, kind in enumerate(relaxed.kind)}
    rows = [of_kind[int(kind)] for kind in finer.kind]
    taken = [_Prices(each.base[rows], each.part[rows]) for each in candidates]
    if passes >= 2:
        taken.append(fine.climbed(taken[-1], FINER_PASSES * passes, FINER_STEP * ascent.step))
    return fine.best_value(taken)


@dataclass(frozen=True, slots=True, eq=False)
class _Prices:
    """Prices of an instance (K, J), never rising; and which share of the surcharge models pay (K, M, J)."""

    base: Floats
    part: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Ascent:
    """A relaxation in steps of time; see `ascend`."""

    relaxed: Relaxation
    edges: Floats
    table: Floats
    capacity: Floats
    held: Floats
    surcharge: Floats

    @classmethod
    def of(cls, relaxed: Relaxation, edges: Floats) -> "_Ascent":
        return cls(
            relaxed=relaxed,
            edges=edges,
            table=charge_table(relaxed.charges, edges),
            capacity=relaxed.capacity_s(edges),
            held=relaxed.held_s(edges),
            surcharge=relaxed.surcharge(edges),
        )

    @property
    def worthless(self) -> _Prices:
        """Capacity for nothing: each group is alone."""
        return _Prices(np.zeros_like(self.capacity), np.ones_like(self.surcharge))

    @property
    def step(self) -> float:
        """The price of an instance second at which missing saves about its worth."""
        c = self.relaxed.charges
        drain_s = np.where(c.runs, c.drain_s, np.inf).min(axis=0)
        worth = c.requests * (c.miss_weight_s + c.late_weight)
        return float(np.median(worth / np.maximum(drain_s, 1e-9)))

    def climbed(self, prices: _Prices, passes: int, step: float) -> _Prices:
        """Better prices, as a rule."""
        turns = _turns(len(self.relaxed.groups))
        base, part = ascend(
            self.relaxed.charges,
            self.edges,
            self.capacity,
            self.held,
            self.surcharge,
            self.table,
            turns,
            prices.base,
            passes,
            step,
        )
        return _Prices(base, part)

    def best_value(self, candidates: list[_Prices]) -> float:
        """The proven value of those prices that look best."""
        c, values = self.relaxed.charges, []
        for each in candidates:
            shares = each.part * self.surcharge
            prices = model_prices(each.base, shares)
            worth = reserve(each.base, shares, self.capacity, self.held)
            values.append((tabulated_value(c, self.edges, prices, self.table) - worth, worth, prices))
        estimate, worth, prices = max(values, key=lambda each: each[0])
        tolerance = TOLERANCE * max(0.0, estimate) / len(c.requests)
        return float(proven_value(c, self.edges, prices, self.table, tolerance)) - worth


def _turns(groups: int) -> Ints:
    """Order of turns: far apart in the order of ids, the same every time."""
    order: Ints = np.argsort((np.arange(groups) * GOLDEN) % 1.0, kind="stable")
    return order
