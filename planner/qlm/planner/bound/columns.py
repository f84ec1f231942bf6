"""Column generation for the relaxation of small problems: a linear program whose columns are starts.

A column lets a share of a group start within one step of a fixed grid. It costs the group's charge at the
beginning of the step. Since capacity is counted from now until each edge, it uses capacity as if it began
at the step's end. Only columns with negative reduced cost are added; HiGHS solves the restricted master.
The result is the value of the dual at the last prices, computed here: an inexact solution makes it lower,
never wrong.
"""

from typing import Final

import highspy
import numpy as np

from qlm.planner.arrays import Floats, Ints
from qlm.planner.bound.charge import Charges
from qlm.planner.bound.dual import NEVER, charge_table, model_prices, price_until, step_of, totals
from qlm.planner.bound.grid import edges_until
from qlm.planner.bound.relaxation import Relaxation
from qlm.planner.compiling.compiled import compiled
from qlm.planner.quiet_highs import quiet_highs

START_GROWTH: Final = 0.005
"""Growth of the steps of starts: it bounds the loss by the grid."""

PRICE_GROWTH: Final = 0.05
"""Growth of the steps between the edges at which capacity is constrained."""

ROUNDS_MAX: Final = 200
"""Most rounds of column generation; problems of ten groups take about ten."""

GAP: Final = 1e-7
"""Column generation ends when the value is within this share of the optimum."""


def column_generation_bound(relaxed: Relaxation) -> float:
    """Solve the relaxation over the fixed grid.

    Args:
        relaxed: A relaxation with at least one group.

    Returns:
        Least penalty of all groups with a deadline, seconds; at most the optimum of the linear program.
    """
    c = relaxed.charges
    starts, edges = edges_until(relaxed.end_s, START_GROWTH), edges_until(relaxed.end_s, PRICE_GROWTH)
    table, capacity = charge_table(c, starts), relaxed.capacity_s(edges)
    shares = relaxed.surcharge(edges)
    master = _Master(c, starts, edges, np.cumsum(capacity, axis=1), shares, table)
    best = -np.inf
    for _ in range(ROUNDS_MAX):
        upper, base, worth = master.solve()
        least, chosen = cheapest_columns(c, starts, edges, model_prices(base, shares), table)
        value = float(least.min(axis=0).sum() - (base * capacity).sum())
        best = max(best, value)
        if upper - best <= GAP * max(1.0, abs(upper)):
            break
        if not master.add(least, chosen, worth):
            break
    return max(0.0, best)


class _Master:
    """Restricted master problem. Rows: one per group (all of it starts), then capacity until each edge."""

    def __init__(
        self, c: Charges, starts: Floats, edges: Floats, capacity: Floats, shares: Floats, table: Floats
    ) -> None:
        self._c, self._starts, self._edges, self._shares, self._table = c, starts, edges, shares, table
        self._shape = capacity.shape
        self._known: set[tuple[int, int, int]] = set()
        self._highs = quiet_highs()
        groups = len(c.requests)
        none = np.zeros(0, dtype=np.int32)
        for _ in range(groups):
            self._highs.addRow(1.0, 1.0, 0, none, none.astype(np.float64))
        for until_s in capacity.ravel():
            self._highs.addRow(-highspy.kHighsInf, float(until_s), 0, none, none.astype(np.float64))
        last = len(starts) - 1
        for g in range(groups):
            for k in np.flatnonzero(c.runs[:, g]):
                self._add(int(k), g, last)

    def solve(self) -> tuple[float, Floats, Floats]:
        """Return the optimum over these columns, the prices (K, J) and the duals of the groups (G,)."""
        self._highs.run()
        duals = np.array(self._highs.getSolution().row_dual)
        groups = len(self._c.requests)
        until = np.maximum(0.0, -duals[groups:]).reshape(self._shape)
        prices = np.cumsum(until[:, ::-1], axis=1)[:, ::-1]
        return (
            float(self._highs.getInfo().objective_function_value),
            np.ascontiguousarray(prices),
            duals[:groups],
        )

    def add(self, least: Floats, chosen: Ints, worth: Floats) -> bool:
        """Add the columns (K, G) that cost less than the dual of their group; False if there is none."""
        before = len(self._known)
        for k, g in np.argwhere(least < worth[None, :] - 1e-12 * np.abs(worth)[None, :]):
            self._add(int(k), int(g), int(chosen[k, g]))
        return len(self._known) > before

    def _add(self, k: int, g: int, at: int) -> None:
        if (k, g, at) in self._known:
            return
        self._known.add((k, g, at))
        c, steps = self._c, self._shape[1]
        rows, work_s = [g], [1.0]
        if at < len(self._starts) - 1:
            done_s = np.clip(self._edges[1:] - self._starts[at + 1], 0.0, c.service_s[k, g])
            done_s *= 1.0 + self._shares[k, c.model[g]]
            some = np.flatnonzero(done_s > 0)
            rows += (len(c.requests) + k * steps + some).tolist()
            work_s += done_s[some].tolist()
        cost = float(self._table[k, g, at])
        self._highs.addCol(
            cost, 0.0, highspy.kHighsInf, len(rows), np.array(rows, dtype=np.int32), np.array(work_s)
        )


@compiled()
def cheapest_columns(
    c: Charges, starts: Floats, edges: Floats, prices: Floats, table: Floats
) -> tuple[Floats, Ints]:
    """Return the least charge and price of each group on each type, and the step of its start; (K, G).

    Args:
        c: The charges.
        starts: Edges of the steps of starts; (N + 1,). Behind the last, the price is 0.
        edges: Edges of the steps of prices; (J + 1,).
        prices: Prices of each model, non-increasing in time; (K, M, J).
        table: Charges at `starts`; (K, G, N + 1).
    """
    kinds, groups = c.runs.shape
    last = len(starts) - 1
    until = totals(prices, edges)
    least = np.full((kinds, groups), NEVER)
    chosen = np.full((kinds, groups), last)
    for k in range(kinds):
        for g in range(groups):
            if not c.runs[k, g]:
                continue
            row, total = prices[k, c.model[g]], until[k, c.model[g]]
            least[k, g] = table[k, g, last]
            for j in range(step_of(starts, c.first_s[k, g]), last):
                paid = price_until(edges, row, total, starts[j + 1] + c.service_s[k, g])
                value = table[k, g, j] + paid - price_until(edges, row, total, starts[j + 1])
                if value < least[k, g]:
                    least[k, g], chosen[k, g] = value, j
    return least, chosen
