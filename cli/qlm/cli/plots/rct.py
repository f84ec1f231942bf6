"""Pictures of an evaluation: predicted against actual, residuals, coverage."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from qlm.cli.plots.simulation import colour, figure
from qlm.simulator.evaluation.accuracy import Pairs
from qlm.simulator.results import SimulationResult

Judged = tuple[str, str, Pairs]

_WINDOWS = 20


def draw_all(result: SimulationResult, judged: Sequence[Judged], folder: Path) -> None:
    """Write three pictures for each forecast quantity: predicted against actual, residuals, coverage."""
    for what in dict.fromkeys(each[1] for each in judged):
        of_time = [(name, pairs) for name, time, pairs in judged if time == what and len(pairs)]
        if of_time:
            title = f"{what.replace('_', ' ')}: {result.scenario.name}, {result.policy}, seed {result.seed}"
            draw_predicted(of_time, title, folder / f"{what}-predicted.png")
            draw_residuals(of_time, title, folder / f"{what}-residuals.png")
            draw_coverage(of_time, title, folder / f"{what}-coverage.png")


def draw_predicted(classes: Sequence[tuple[str, Pairs]], title: str, path: Path) -> None:
    """Draw one dot per forecast; exact forecasts are on the diagonal."""
    made, axes = figure(f"Predicted and actual {title}", width=6.0, height=6.0)
    most = max(float(max(pairs.actual.max(), pairs.predicted.max())) for _, pairs in classes)
    axes.plot([0, most], [0, most], color="black", linewidth=0.8)
    for number, (name, pairs) in enumerate(classes):
        axes.scatter(pairs.predicted, pairs.actual, s=5, alpha=0.4, label=name, color=colour(number))
    axes.set(xlabel="predicted, s", ylabel="actual, s")
    axes.legend()
    made.savefig(path)


def draw_residuals(classes: Sequence[tuple[str, Pairs]], title: str, path: Path) -> None:
    """Draw the distribution of the residuals."""
    made, axes = figure(f"Actual less predicted {title}")
    for number, (name, pairs) in enumerate(classes):
        axes.hist(
            pairs.actual - pairs.predicted,
            bins=60,
            histtype="step",
            density=True,
            label=name,
            color=colour(number),
        )
    axes.set(xlabel="actual - predicted, s", ylabel="density, 1/s")
    axes.legend()
    made.savefig(path)


def draw_coverage(classes: Sequence[tuple[str, Pairs]], title: str, path: Path) -> None:
    """Draw the coverage of the 90 % interval over the forecast, in windows of equally many forecasts."""
    made, axes = figure(f"Inside the 90 % interval: {title}")
    axes.axhspan(85, 95, color="#dddddd")
    for number, (name, pairs) in enumerate(classes):
        order = np.argsort(pairs.predicted, kind="stable")
        inside = (pairs.actual >= pairs.low) & (pairs.actual <= pairs.high)
        windows = np.array_split(order, min(_WINDOWS, len(order)))
        means = [float(pairs.predicted[rows].mean()) for rows in windows]
        shares = [100 * float(inside[rows].mean()) for rows in windows]
        axes.plot(means, shares, marker=".", label=name, color=colour(number))
    axes.set(xlabel="predicted, s", ylabel="inside, %", ylim=(-3, 103))
    axes.legend()
    made.savefig(path)
