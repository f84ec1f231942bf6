"""Pictures of the figures of `qlm evaluate streaming`."""

from pathlib import Path
from typing import Final

from qlm.cli.figures.figure import Figure, Rows, mean
from qlm.cli.plots.simulation import colour, figure

AXES: Final = {
    "load": "load: requests per second over what fcfs serves",
    "requests": "requests that arrive together",
}


def draw_all(shown: Figure, rows: Rows, path: Path) -> None:
    """Draw the measure of a figure: lines over its axis, or one bar per policy."""
    made, axes = figure(shown.title)
    name, points = shown.shown[shown.drawn], sorted({each.point for each in rows})
    for number, arm in enumerate(dict.fromkeys(each.arm for each in rows)):
        values = [mean(rows, arm, shown.drawn, point) for point in points]
        if shown.axis:
            axes.plot(points, values, marker="o", label=arm, color=colour(number))
        else:
            axes.barh([arm], values, color=colour(number))
    if shown.axis:
        axes.set(xlabel=AXES[shown.axis], ylabel=name, ylim=(0, None))
        axes.legend()
    else:
        axes.invert_yaxis()
        axes.set(xlabel=name)
    made.savefig(path)
