"""Dual bound of problems of any size: prices by subgradient ascent, then a proof of their value."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from qlm.planner.arrays import Floats, Ints
from qlm.planner.bound.ascent import ascend
from qlm.planner.bound.dual import (
    best_start,
    capacity_value,
    charge_table,
    model_prices,
    proven_value,
    tabulated_value,
    totals,
)
from qlm.planner.bound.grid import edges_until
from qlm.planner.bound.relaxation import Relaxation

PRICE_GROWTH: Final = 0.05
"""Growth of the steps between edges."""

TOLERANCE: Final = 1e-3
"""Largest loss in the proof of a value, as a share of the value."""

FINER_STEP: Final = 0.1
"""First step size of an ascent that starts from good prices, over that of one from scratch."""

FINER_PASSES: Final = 3
"""Passes of such an ascent, over those of one from scratch."""

GOLDEN: Final = 0.6180339887498949


def ascent_bound(relaxed: Relaxation, passes: int, *, finer: Relaxation | None = None) -> float:
    """Return a lower bound on a relaxation; better prices give a tighter one.

    Args:
        relaxed: A relaxation with at least one group.
        passes: Passes of the ascent; with less than 2, prices are 0 and each group is alone.
        finer: The same problem with finer lane types; its ascent starts from the prices found for the others.

    Returns:
        Seconds; at most the optimum of the (finer) relaxation.
    """
    ascent = _Ascent.of(relaxed, edges_until(relaxed.soon_s, PRICE_GROWTH))
    zero = ascent.zero_prices
    candidates = [zero]
    if passes >= 2:
        candidates.append(ascent.improved(zero, passes, ascent.step))
    if finer is None:
        return ascent.best_value(candidates)
    fine = _Ascent.of(finer, ascent.edges)
    of_kind = {int(kind): k for k, kind in enumerate(relaxed.kind)}
    rows = [of_kind[int(kind)] for kind in finer.kind]
    taken = [_Prices(each.base[rows], each.part[rows]) for each in candidates]
    if passes >= 2:
        taken.append(fine.improved(taken[-1], FINER_PASSES * passes, FINER_STEP * ascent.step))
    return fine.best_value(taken)


def group_prices(relaxed: Relaxation, passes: int) -> Floats:
    """Return what each group costs at least with its share of capacity, at ascended prices; seconds, (G,).

    The sum less the price of all capacity is about the bound.
    """
    ascent = _Ascent.of(relaxed, edges_until(relaxed.soon_s, PRICE_GROWTH))
    return ascent.group_costs(ascent.improved(ascent.zero_prices, passes, ascent.step))


@dataclass(frozen=True, slots=True, eq=False)
class _Prices:
    """Non-increasing prices of an instance (K, J), and each model's share of the surcharge (K, M, J)."""

    base: Floats
    part: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Ascent:
    """A relaxation in steps of time; see `ascend`."""

    relaxed: Relaxation
    edges: Floats
    table: Floats
    capacity: Floats
    loaded: Floats
    surcharge: Floats

    @classmethod
    def of(cls, relaxed: Relaxation, edges: Floats) -> "_Ascent":
        return cls(
            relaxed=relaxed,
            edges=edges,
            table=charge_table(relaxed.charges, edges),
            capacity=relaxed.capacity_s(edges),
            loaded=relaxed.loaded_s(edges),
            surcharge=relaxed.surcharge(edges),
        )

    @property
    def zero_prices(self) -> _Prices:
        """Zero prices: each group is alone."""
        return _Prices(np.zeros_like(self.capacity), np.ones_like(self.surcharge))

    @property
    def step(self) -> float:
        """Step size: the price of an instance second at which a miss costs about as much as serving."""
        c = self.relaxed.charges
        service_s = np.where(c.runs, c.service_s, np.inf).min(axis=0)
        worth = c.requests * (c.miss_weight_s + c.late_weight)
        return float(np.median(worth / np.maximum(service_s, 1e-9)))

    def improved(self, prices: _Prices, passes: int, step: float) -> _Prices:
        """Return prices that are improved, as a rule."""
        order = _order(len(self.relaxed.groups))
        base, part = ascend(
            self.relaxed.charges,
            self.edges,
            self.capacity,
            self.loaded,
            self.surcharge,
            self.table,
            order,
            prices.base,
            passes,
            step,
        )
        return _Prices(base, part)

    def group_costs(self, prices: _Prices) -> Floats:
        """Return the least charge and price of each group over the tabulated starts; (G,)."""
        c, of_models = self.relaxed.charges, model_prices(prices.base, prices.part * self.surcharge)
        until, least = totals(of_models, self.edges), np.full(len(c.requests), np.inf)
        for k, g in np.argwhere(c.runs):
            m = c.model[g]
            cost, _ = best_start(c, k, g, self.edges, of_models[k, m], until[k, m], self.table[k, g])
            least[g] = min(least[g], cost)
        return least

    def best_value(self, candidates: list[_Prices]) -> float:
        """Return the proven value of the prices with the best estimate."""
        c, values = self.relaxed.charges, []
        for each in candidates:
            shares = each.part * self.surcharge
            prices = model_prices(each.base, shares)
            worth = capacity_value(each.base, shares, self.capacity, self.loaded)
            values.append((tabulated_value(c, self.edges, prices, self.table) - worth, worth, prices))
        estimate, worth, prices = max(values, key=lambda each: each[0])
        tolerance = TOLERANCE * max(0.0, estimate) / len(c.requests)
        return float(proven_value(c, self.edges, prices, self.table, tolerance)) - worth


def _order(groups: int) -> Ints:
    """Return a fixed order of the groups in which neighbours are far apart by id."""
    order: Ints = np.argsort((np.arange(groups) * GOLDEN) % 1.0, kind="stable")
    return order
