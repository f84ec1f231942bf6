"""Report of the benchmark of drawn scenarios: goals, arms, kinds of scenarios, and each cell."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.table import Table

from benchmarks.motion.cells import Cell, mean_interval
from benchmarks.motion.facts import Facts
from benchmarks.motion.runs import BOUND
from benchmarks.motion.tightness import TIGHT, below_bound, low_and_tight

NEAR: Final = -0.5
"""Points behind the best rival that still count as equal."""

FAR: Final = -2.0
"""Points behind the best rival beyond which no interval may lie as a whole."""

BUSY: Final = 0.8
"""Least load of the cells of the mean gain; below and at it, late work is compared."""

SATURATED: Final = 1.0
"""Least load of the cells whose rate of answers is compared."""

RULES: Final = "edf+rules"
ARRIVALS: Final = "fcfs"


def goals(cells: Sequence[Cell], subject: str, facts: Mapping[str, Facts]) -> dict[str, Any]:
    """Return the figures that the benchmark is about; differences in percent points."""
    gained = [
        cell.attainment[subject] - cell.attainment[RULES]
        for cell in cells
        if cell.load >= BUSY and RULES in cell.attainment and _shared(facts[cell.scenario])
    ]
    late = _ratios([cell for cell in cells if cell.load <= BUSY], subject, "late_p99_s")
    served = _ratios([cell for cell in cells if cell.load >= SATURATED], subject, "served_rps")
    below = low_and_tight(cells, subject)
    spreads = [cell.spread for cell in cells if cell.spread is not None]
    return {
        "cells": len(cells),
        "near_or_better_share": _mean([cell.difference >= NEAR for cell in cells]),
        "wholly_behind": [f"{cell.scenario} {cell.load:g}" for cell in cells if cell.interval[1] < FAR],
        "difference_mean": _mean([cell.difference for cell in cells]),
        "difference_least": min((cell.difference for cell in cells), default=None),
        "gain_over_edf_rules": _mean(gained),
        "gain_over_edf_rules_interval": mean_interval(gained) if gained else None,
        "gain_cells": len(gained),
        "spread_mean": _mean(spreads),
        "spread_most": max(spreads, default=None),
        "spread_over_3": sum(spread > 3 for spread in spreads),
        "late_p99_over_fcfs_median": statistics.median(late) if late else None,
        "late_p99_over_fcfs_most": max(late, default=None),
        "late_p99_within_twice_share": _mean([ratio <= 2 for ratio in late]),
        "low_load_cells_with_tight_bound": len(below),
        "low_load_near_bound_share": _mean([points <= TIGHT for points in below]),
        "served_over_fcfs_mean": _mean(served),
        "served_over_fcfs_least": min(served, default=None),
    }


def _shared(facts: Facts) -> bool:
    return facts.models > facts.instances


def _ratios(cells: Sequence[Cell], subject: str, figure: str) -> list[float]:
    found = (cell.ratio(subject, ARRIVALS, figure) for cell in cells)
    return [ratio for ratio in found if ratio is not None]


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def by_kind(cells: Sequence[Cell], facts: Mapping[str, Facts]) -> dict[str, dict[str, float]]:
    """Return the mean difference to the best rival by property of the scenarios, and by load."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        for name, holds in facts[cell.scenario].properties.items():
            if holds:
                groups.setdefault(name, []).append(cell)
        groups.setdefault(f"load {cell.load:g}", []).append(cell)
    return {
        name: {
            "cells": len(of),
            "difference": statistics.fmean(cell.difference for cell in of),
            "least": min(cell.difference for cell in of),
            "near_or_better_share": statistics.fmean(cell.difference >= NEAR for cell in of),
        }
        for name, of in sorted(groups.items())
    }


def plain(cells: Sequence[Cell], subject: str, facts: Mapping[str, Facts]) -> dict[str, Any]:
    """Return the whole report as plain values."""
    return {
        "subject": subject,
        "goals": goals(cells, subject, facts),
        "by_kind": by_kind(cells, facts),
        "cells": [
            {
                "scenario": cell.scenario,
                "load": cell.load,
                "models": facts[cell.scenario].models,
                "instances": facts[cell.scenario].instances,
                "properties": [name for name, holds in facts[cell.scenario].properties.items() if holds],
                "attainment": {arm: round(mean, 3) for arm, mean in cell.attainment.items()},
                "best_rival": cell.best,
                "below_bound": below_bound(cell, subject),
                "difference": round(cell.difference, 3),
                "interval": [round(edge, 3) for edge in cell.interval],
                "spread": cell.spread,
            }
            for cell in cells
        ],
    }


def tables(cells: Sequence[Cell], subject: str, facts: Mapping[str, Facts]) -> Iterator[Table]:
    """Yield the report as tables."""
    yield _goals_table(goals(cells, subject, facts))
    yield _arms_table(cells)
    yield _kinds_table(by_kind(cells, facts))
    yield _cells_table(cells, subject, facts)


def _goals_table(figures: Mapping[str, Any]) -> Table:
    made = Table("figure", "value", title="all cells; differences in percent points")
    for name, value in figures.items():
        made.add_row(name.replace("_", " "), _shown(value))
    return made


def _shown(value: Any) -> str:
    match value:
        case None:
            return "-"
        case float():
            return f"{value:.3f}"
        case list() | tuple():
            return ", ".join(map(_shown, value)) or "none"
        case _:
            return str(value)


def _arms_table(cells: Sequence[Cell]) -> Table:
    made = Table("load", "arm", "met", "served/s", "late P99 s", "evictions", "swaps", "processor s")
    for load in sorted({cell.load for cell in cells}):
        of = [cell for cell in cells if cell.load == load]
        for arm in of[0].runs:
            runs = [one for cell in of for one in cell.runs.get(arm, ())]
            late = [one.late_p99_s for one in runs if one.late_p99_s is not None]
            made.add_row(
                f"{load:g}",
                arm,
                f"{statistics.fmean(cell.attainment[arm] for cell in of if arm in cell.attainment):.1f}",
                f"{statistics.fmean(one.served_rps for one in runs):.2f}",
                f"{statistics.fmean(late):.0f}" if late else "-",
                f"{statistics.fmean(one.evictions for one in runs):.0f}",
                f"{statistics.fmean(one.swaps for one in runs):.0f}",
                f"{statistics.fmean(one.processor_s for one in runs):.1f}",
            )
    return made


def _kinds_table(kinds: Mapping[str, Mapping[str, float]]) -> Table:
    made = Table("scenarios", "cells", "difference to best rival", "least", "near or better")
    for name, of in kinds.items():
        made.add_row(
            name,
            f"{of['cells']}",
            f"{of['difference']:+.1f}",
            f"{of['least']:+.1f}",
            f"{of['near_or_better_share']:.0%}",
        )
    return made


def _cells_table(cells: Sequence[Cell], subject: str, facts: Mapping[str, Facts]) -> Table:
    columns = ("scenario", "models", "instances", "load", subject, "best rival", "difference", "95 %", "sd")
    made = Table(*columns, BOUND)
    for cell in sorted(cells, key=lambda cell: cell.difference):
        low, high = cell.interval
        made.add_row(
            cell.scenario,
            str(facts[cell.scenario].models),
            str(facts[cell.scenario].instances),
            f"{cell.load:g}",
            f"{cell.attainment[subject]:.1f}",
            f"{cell.best} {cell.attainment[cell.best]:.1f}",
            f"{cell.difference:+.1f}",
            f"{low:+.1f} to {high:+.1f}",
            "-" if cell.spread is None else f"{cell.spread:.1f}",
            f"{cell.attainment[BOUND]:.1f}" if BOUND in cell.attainment else "-",
        )
    return made
