"""Linear program that is built row by row, solved by HiGHS."""

from collections.abc import Sequence

import highspy
import numpy as np

from benchmarks.motion.bound.work import FloatArray
from qlm.planner.quiet_highs import quiet_highs


class LinearProgram:
    """Maximise a sum over columns under rows of at most a constant.

    Args:
        time_limit_s: Limit of the solver.
    """

    def __init__(self, time_limit_s: float) -> None:
        self._time_limit_s = time_limit_s
        self._gains: list[float] = []
        self._most: list[float] = []
        self._columns: list[int] = []
        self._values: list[float] = []
        self._starts: list[int] = [0]
        self._limits: list[float] = []

    def column(self, most: float, gain: float = 0.0) -> int:
        """Add a column from 0 to `most`; return its number."""
        self._most.append(most)
        self._gains.append(gain)
        return len(self._most) - 1

    def row(self, columns: Sequence[int], values: Sequence[float], most: float) -> None:
        """Add a row: the sum of the values times the columns is at most a constant."""
        self._columns.extend(columns)
        self._values.extend(values)
        self._starts.append(len(self._columns))
        self._limits.append(most)

    def most(self) -> float | None:
        """Solve it; return the largest sum, None if the time was not enough."""
        if not self._most:
            return 0.0
        highs = quiet_highs(time_limit=self._time_limit_s)
        highs.passModel(self._model())
        highs.run()
        if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        return float(highs.getInfo().objective_function_value)

    def _model(self) -> highspy.HighsLp:
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self._most), len(self._limits)
        lp.sense_ = highspy.ObjSense.kMaximize
        lp.col_cost_ = _array(self._gains)
        lp.col_lower_, lp.col_upper_ = np.zeros(len(self._most)), _array(self._most)
        lp.row_lower_ = np.full(len(self._limits), -highspy.kHighsInf)
        lp.row_upper_ = _array(self._limits)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.array(self._starts, dtype=np.int32)
        lp.a_matrix_.index_ = np.array(self._columns, dtype=np.int32)
        lp.a_matrix_.value_ = _array(self._values)
        return lp


def _array(values: Sequence[float]) -> FloatArray:
    return np.array(values, dtype=np.float64)
