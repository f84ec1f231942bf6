"""Distance of an arm to the bound that no policy exceeds."""

from collections.abc import Sequence
from typing import Final

from benchmarks.motion.cells import Cell
from benchmarks.motion.runs import BOUND, REPORTED

LOW: Final = 0.3
"""Highest load of the cells that are compared with the bound."""

TIGHT: Final = 1.0
"""Points below the bound within which an arm must come, for the bound to be known as tight."""


def below_bound(cell: Cell, arm: str) -> float | None:
    """Return the points by which an arm is below the bound; None if the cell has no bound."""
    return cell.attainment[BOUND] - cell.attainment[arm] if BOUND in cell.attainment else None


def low_and_tight(cells: Sequence[Cell], subject: str) -> list[float]:
    """Return the points of the subject below the bound, of the cells at low load with a tight bound."""
    found = []
    for cell in cells:
        ours = below_bound(cell, subject)
        others = [below_bound(cell, arm) for arm in cell.attainment if arm not in REPORTED]
        least = min((each for each in others if each is not None), default=None)
        if cell.load <= LOW and ours is not None and least is not None and least <= TIGHT:
            found.append(ours)
    return found
