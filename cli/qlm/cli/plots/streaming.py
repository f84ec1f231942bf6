"""Pictures of the figures of `qlm evaluate streaming`."""

from pathlib import Path

from qlm.cli.figures.figure import Figure, Rows, mean
from qlm.cli.plots.simulation import colour, figure


def draw_all(shown: Figure, rows: Rows, path: Path) -> None:
    """Draw the measure of a figure: lines over the load, or one bar per policy."""
    made, axes = figure(shown.title)
    name, loads = shown.shown[shown.drawn], sorted({each.load for each in rows})
    for number, arm in enumerate(dict.fromkeys(each.arm for each in rows)):
        values = [mean(rows, arm, shown.drawn, load) for load in loads]
        if shown.loads:
            axes.plot(loads, values, marker="o", label=arm, color=colour(number))
        else:
            axes.barh([arm], values, color=colour(number))
    if shown.loads:
        axes.set(xlabel="load: requests per second over what fcfs serves", ylabel=name, ylim=(0, None))
        axes.legend()
    else:
        axes.invert_yaxis()
        axes.set(xlabel=name)
    made.savefig(path)
