"""The restricted master program of column generation: fractions of known queues that serve every group."""

from dataclasses import dataclass

import highspy
import numpy as np

from qlm.planner.arrays import Floats, Ints
from qlm.planner.certify.tracing import Found
from qlm.planner.certify.tracks import Tracks
from qlm.planner.quiet_highs import quiet_highs


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """A queue of one lane type.

    Attributes:
        track: Index of the type.
        order: Priced groups in order; one may occur several times.
        cheats: Models that it loads as if for a second time, without a first, by their index in the track.
        cost_s: Its charges.
    """

    track: int
    order: Ints
    cheats: Ints
    cost_s: float

    @classmethod
    def of(cls, tracks: Tracks, k: int, found: Found) -> "Column":
        """Write a priced queue as a column."""
        order = tracks.tracks[k].groups[found.order]
        return cls(track=k, order=order, cheats=np.flatnonzero(found.cheats), cost_s=found.cost_s)

    @property
    def key(self) -> tuple[int, bytes, float]:
        """Identity: equal columns add nothing."""
        return self.track, self.order.tobytes(), self.cost_s


class Master:
    """Linear program over columns: every group is served, and types have so many queues.

    Args:
        tracks: The lane types.
        unit_s: Seconds per unit of cost: tolerances of the solver suit numbers about 1.
    """

    def __init__(self, tracks: Tracks, unit_s: float) -> None:
        self._tracks, self._unit_s = tracks, unit_s
        self._groups = len(tracks.groups)
        self._highs = quiet_highs()
        none = np.zeros(0, dtype=np.int32)
        for _ in range(self._groups):
            self._highs.addRow(1.0, highspy.kHighsInf, 0, none, none.astype(np.float64))
        for members in tracks.members:
            self._highs.addRow(-highspy.kHighsInf, float(len(members)), 0, none, none.astype(np.float64))
        for g, ceiling_s in enumerate(tracks.ceiling_s):
            self._add_column(ceiling_s, np.array([g]), np.ones(1))
        self._columns: dict[tuple[int, bytes, float], Column] = {}

    @property
    def columns(self) -> list[Column]:
        """All columns, in the order of the program."""
        return list(self._columns.values())

    def add(self, column: Column) -> bool:
        """Add a column; False if it is known or empty."""
        if not len(column.order) or column.key in self._columns:
            return False
        self._columns[column.key] = column
        groups, count = np.unique(column.order, return_counts=True)
        rows = np.append(groups, self._groups + column.track)
        self._add_column(column.cost_s, rows, np.append(count, 1))
        return True

    def drop(self, gone: Ints) -> None:
        """Remove columns by their place in `columns`."""
        keys = list(self._columns)
        for at in gone:
            del self._columns[keys[at]]
        if len(gone):
            places = (gone + self._groups).astype(np.int32)
            self._highs.deleteCols(len(places), places)

    def solve(self, time_limit_s: float) -> tuple[float, Floats, Floats]:
        """Return the optimum in seconds, the duals of groups, and how much of each column is used."""
        self._highs.setOptionValue("time_limit", self._highs.getRunTime() + max(0.01, time_limit_s))
        self._highs.run()
        solution = self._highs.getSolution()
        duals = np.array(solution.row_dual)[: self._groups] * self._unit_s
        value = float(self._highs.getInfo().objective_function_value) * self._unit_s
        return value, duals, np.array(solution.col_value)[self._groups :]

    def _add_column(self, cost_s: float, rows: Ints, count: Ints | Floats) -> None:
        self._highs.addCol(
            cost_s / self._unit_s,
            0.0,
            highspy.kHighsInf,
            len(rows),
            rows.astype(np.int32),
            count.astype(np.float64),
        )
