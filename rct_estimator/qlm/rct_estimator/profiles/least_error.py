"""Least absolute error over bounded coefficients, as a linear program that HiGHS solves."""

from typing import Final

import highspy
import numpy as np

from qlm.rct_estimator.profiles.iteration import FloatArray

_OPTIONS: Final = (("output_flag", False), ("threads", 1), ("random_seed", 0), ("presolve", "off"))


def least_absolute(
    matrix: FloatArray, target: FloatArray, low: FloatArray, high: FloatArray
) -> tuple[FloatArray, float]:
    """Minimise sum |matrix x - target| over low <= x <= high.

    Args:
        matrix: Shape (points, coefficients), float64; columns may differ in size by many orders.
        target: Shape (points,), float64.
        low: Least coefficients, shape (coefficients,), finite.
        high: Largest coefficients, shape (coefficients,); infinite for no limit.

    Returns:
        x, shape (coefficients,), and the least sum.
    """
    scale = np.abs(matrix).max(axis=0, initial=0.0)
    scale[scale == 0] = 1.0
    highs = _program(matrix / scale, target, low * scale, high * scale)
    highs.run()
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        raise AssertionError(f"a bounded program without an optimum: {highs.getModelStatus()}")
    solution = np.array(highs.getSolution().col_value[: matrix.shape[1]]) / scale
    x = np.clip(solution, low, high)
    return x, float(np.abs(matrix @ x - target).sum())


def _program(matrix: FloatArray, target: FloatArray, low: FloatArray, high: FloatArray) -> highspy.Highs:
    """Build the program: beside each point, what the prediction lacks and what it has too much, at cost 1."""
    points, coefficients = matrix.shape
    rest = np.eye(points)
    rows = np.hstack([matrix, rest, -rest])
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = rows.shape[1], points
    program.col_cost_ = np.concatenate([np.zeros(coefficients), np.ones(2 * points)])
    program.col_lower_ = np.concatenate([low, np.zeros(2 * points)])
    program.col_upper_ = np.concatenate([high, np.full(2 * points, highspy.kHighsInf)])
    program.row_lower_ = program.row_upper_ = target
    at, column = np.nonzero(rows)
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    program.a_matrix_.start_ = np.searchsorted(at, np.arange(points + 1)).astype(np.int32)
    program.a_matrix_.index_ = column.astype(np.int32)
    program.a_matrix_.value_ = rows[at, column]
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    for option, value in _OPTIONS:
        highs.setOptionValue(option, value)
    highs.passModel(program)
    return highs
