"""Picture of a comparison of policies."""

import math
from collections.abc import Sequence
from pathlib import Path

from qlm.cli.comparison.report import Cell
from qlm.cli.plots.simulation import colour, figure


def draw_all(found: Sequence[Cell], folder: Path) -> None:
    """Write compare.png: objectives met, as a line over the loads or a bar for each policy and scenario."""
    made, axes = figure("Objectives met: mean and standard deviation between seeds")
    loads = sorted({each.load for each in found})
    named = len({each.scenario for each in found}) > 1
    lines = dict.fromkeys((each.scenario, each.policy) for each in found)
    for number, (scenario, policy) in enumerate(lines):
        of_line = sorted(
            (each for each in found if (each.scenario, each.policy) == (scenario, policy)),
            key=lambda each: each.load,
        )
        met = [math.nan if each.means.met is None else 100 * each.means.met for each in of_line]
        spreads = [100 * (each.met_spread or 0.0) for each in of_line]
        label = f"{scenario}, {policy}" if named else policy
        if len(loads) > 1:
            axes.errorbar(loads, met, yerr=spreads, marker="o", capsize=3, label=label, color=colour(number))
        else:
            axes.barh([label], met, xerr=spreads, capsize=3, color=colour(number))
    if len(loads) > 1:
        axes.set(xlabel="factor on all arrival rates", ylabel="met, %", ylim=(0, 102))
        axes.legend()
    else:
        axes.invert_yaxis()
        axes.set(xlabel="met, %", xlim=(0, 102))
    made.savefig(folder / "compare.png")
