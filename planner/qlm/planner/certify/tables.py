"""Tables of charges by step of the grid, for pricing."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from qlm.planner.arrays import Floats, Ints, ProblemArrays, row_major
from qlm.planner.bound.charge import Charges
from qlm.planner.bound.dual import charge_table
from qlm.planner.bound.relaxation import Relaxation, Weights, relaxation

TABLE_CELLS_MAX: Final = 2**25
"""Most charges kept by lane type (256 MB); larger problems have one table per kind, which is less tight."""


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Makes tables of charges: by lane type, or by kind if these are too many.

    Attributes:
        charges: Parameters of the charges, without the price of moves.
        rows: Row in these of each lane type.
        edges: The grid, (T + 1,).
    """

    charges: Charges
    rows: Ints
    edges: Floats

    @classmethod
    def of(cls, arrays: ProblemArrays, relaxed: Relaxation, weights: Weights, edges: Floats) -> "Tables":
        """Choose the rows."""
        types, groups = relaxed.charges.runs.shape
        by_type = types * groups * len(edges) <= TABLE_CELLS_MAX
        base = relaxed if by_type else relaxation(arrays, weights, lanes="kind")
        row = {int(kind): k for k, kind in enumerate(base.kind)}
        rows = np.arange(types) if by_type else np.array([row[int(kind)] for kind in relaxed.kind])
        c = base.charges._replace(extra_s=np.zeros_like(base.charges.extra_s))
        return cls(row_major(c), rows, edges)

    def at(self, variances: Floats, rows: Ints) -> Floats:
        """Return the least penalty in or after each step, by least variance before; (L, rows, G, T + 1)."""
        return np.stack([self._rising(float(var), rows) for var in variances])

    def _rising(self, var: float, rows: Ints) -> Floats:
        c = self.charges
        chosen = c._replace(
            runs=c.runs[rows],
            first_s=c.first_s[rows],
            service_s=c.service_s[rows],
            tail_s=c.tail_s[rows],
            low_sd=np.sqrt(c.low_sd[rows] ** 2 + var),
            own_var=c.own_var[rows],
            extra_s=c.extra_s[rows],
            busy_s=c.busy_s[rows],
            busy_var=c.busy_var[rows],
            total_var=c.total_var[rows],
            prior_s=c.prior_s[rows],
            prior_slope=c.prior_slope[rows],
            shared_sd=c.shared_sd[:, rows],
            shared_slope=c.shared_slope[:, rows],
            shared_most=c.shared_most[rows],
        )
        table = charge_table(row_major(chosen), self.edges)
        rising: Floats = np.minimum.accumulate(table[:, :, ::-1], axis=2)[:, :, ::-1]
        return rising
