"""Comparing forecasts of completion times with simulated outcomes, for `qlm evaluate rct`."""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click
import orjson

from qlm.cli.commands.options import errors_in_one_line
from qlm.cli.commands.simulation_options import bar, check_folder, drawing
from qlm.cli.inspect import render
from qlm.cli.inspect.console import console
from qlm.cli.inspect.layout import Table
from qlm.cli.scenario.output import make_folder, write_files
from qlm.cli.scenario.workload import DrawnScenario, draw_scenario, stream_lines
from qlm.simulator.evaluation.accuracy import (
    TIMES,
    Accuracy,
    Pairs,
    accuracy,
    by_class,
    group_pairs,
    request_pairs,
)
from qlm.simulator.evaluation.forecasts import ForecastRecorder
from qlm.simulator.gpu_report import gpu_summary, gpu_time_text
from qlm.simulator.policies import Policy
from qlm.simulator.report import arrived_rows
from qlm.simulator.results import SimulationResult
from qlm.simulator.simulation import simulate

Judged = tuple[str, str, Pairs]

PICTURES: Final = tuple(
    f"{what}-{shown}.png" for what in (*TIMES, "group") for shown in ("predicted", "residuals", "coverage")
)
"""Pictures of `qlm.cli.plots.rct`."""
"""Class, forecast quantity, and pairs of forecast and outcome."""


def evaluate_forecasts(
    scenario: Path,
    policy: Policy,
    seed: int,
    load: float,
    *,
    every: int | None,
    about: int,
    skip: int,
    queued: bool,
    out: Path | None,
    plots: bool,
    as_json: bool,
) -> None:
    """Simulate a scenario, and print how good the forecasts of its requests were.

    Args:
        scenario: File of the scenario.
        policy: Policy of the simulation.
        seed: Seed of all randomness.
        load: Factor on the load.
        every: Forecast every N-th request; None for as many as `about` allows.
        about: Number of requests that are forecast if `every` is None.
        skip: First requests that are left out.
        queued: Leave out requests that found a free batch slot.
        out: Folder for accuracy.json.
        plots: Draw pictures into the folder.
        as_json: Print JSON.
    """
    with errors_in_one_line():
        check_folder(plots=plots, out=out)
        draw = drawing("rct") if plots else None
        drawn = draw_scenario(scenario, seed, load=load)
        if out is not None:
            make_folder(out, ("accuracy.json", *(PICTURES if plots else ())))
        result, recorder = _run(drawn, policy, seed, every, about)
        judged = judge(result, recorder, skip=skip, queued_only=queued)
        rows = [(name, what, accuracy(pairs)) for name, what, pairs in judged]
        plain = orjson.dumps(_plain(drawn, result, rows), option=orjson.OPT_INDENT_2)
        if out is not None:
            write_files(out, {"accuracy.json": plain + b"\n"})
            if draw is not None:
                draw(result, judged, out)
    if as_json:
        click.echo(plain.decode())
    else:
        for line in stream_lines(drawn.streams):
            click.echo(line)
        _print(result, rows, out)


def _run(
    drawn: DrawnScenario, policy: Policy, seed: int, every: int | None, about: int
) -> tuple[SimulationResult, ForecastRecorder]:
    with bar("forecasting") as report_progress:
        recorder = ForecastRecorder(every, about=about)
        result = simulate(
            drawn.scenario,
            policy,
            seed,
            stopwatch_s=time.perf_counter,
            on_progress=report_progress,
            observer=recorder,
        )
    return result, recorder


def judge(
    result: SimulationResult, recorder: ForecastRecorder, *, skip: int = 0, queued_only: bool = False
) -> list[Judged]:
    """Pair all forecasts with their outcomes, by class; groups last."""
    kept = {number: each for number, each in recorder.requests.items() if number >= skip}
    judged: list[Judged] = [
        (name, what, request_pairs(result, forecasts, what))
        for name, forecasts in by_class(result, kept, queued_only=queued_only).items()
        for what in TIMES
    ]
    return [*judged, ("all", "group", group_pairs(result, recorder.groups.values()))]


def _plain(
    drawn: DrawnScenario, result: SimulationResult, rows: Sequence[tuple[str, str, Accuracy]]
) -> dict[str, object]:
    return {
        "scenario": result.scenario.name,
        "policy": result.policy,
        "seed": result.seed,
        "submitted": int(arrived_rows(result).sum()),
        **gpu_summary(result),
        "accuracy": [{"slo_class": name, "time": what, **asdict(row)} for name, what, row in rows],
        "streams": [asdict(each) for each in drawn.streams],
    }


def _print(result: SimulationResult, rows: Sequence[tuple[str, str, Accuracy]], out: Path | None) -> None:
    click.echo(f"Forecasts of {result.scenario.name}, {result.policy}, seed {result.seed}; times in seconds")
    for what in dict.fromkeys(what for _, what, _ in rows):
        console().print(_table(what, [(name, row) for name, time, row in rows if time == what]), crop=False)
    console().print(gpu_time_text(gpu_summary(result)), highlight=False, markup=False)
    if out is not None:
        click.echo(f"written to {out}")


def _table(what: str, rows: Sequence[tuple[str, Accuracy]]) -> Table:
    """Lay out the accuracy for one quantity."""
    heads = ("class", "n>", "mean>", "error>", "%>", "bias>", "R²>", "in 90 %>", "width>", "oracle's>")
    return render.table(what.replace("_", " "), heads, ((name, *_figures(row)) for name, row in rows))


def _figures(row: Accuracy) -> tuple[str, ...]:
    return (
        str(row.count),
        _number(row.actual_mean_s),
        _number(row.error_mean_s),
        _number(100 * row.error_share, 1),
        _number(row.bias_s),
        _number(row.r2, 3),
        _number(100 * row.coverage, 1),
        _number(row.width_s),
        _number(row.oracle_width_s),
    )


def _number(value: float, digits: int = 2) -> str:
    """Format a number with up to `digits` decimals, fewer the larger it is."""
    if math.isnan(value):
        return "-"
    whole = len(f"{abs(value):.0f}")
    return f"{value:.{max(0, min(digits, 6 - whole))}f}" if whole <= 7 else f"{value:.1e}"
