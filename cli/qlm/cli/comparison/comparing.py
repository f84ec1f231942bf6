"""Simulation of all runs of a comparison, with its table and its files."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import orjson

from qlm.cli.commands.simulation_options import drawing
from qlm.cli.comparison.report import cells, plain, runs_csv, shown
from qlm.cli.comparison.runs import Plan, Run, run
from qlm.cli.inspect.console import console
from qlm.cli.progress import steps_bar
from qlm.cli.scenario.output import make_folder, write_files
from qlm.simulator.simulation import Progress


def compare(plan: Plan, out: Path | None, *, plots: bool, as_json: bool) -> None:
    """Simulate all runs of a comparison, print its table, and write the files that were asked for.

    Args:
        plan: The runs.
        out: Folder for the files; None for none.
        plots: Draw the picture into the folder.
        as_json: Print JSON, not a table.

    Raises:
        QlmError: A scenario cannot be simulated, or the folder cannot be made.
    """
    draw = drawing("comparison") if plots else None
    if out is not None:
        make_folder(out, ("compare.csv", *(("compare.png",) if plots else ())))
    runs = list(_runs(plan))
    found = list(cells(runs))
    if out is not None:
        write_files(out, {"compare.csv": runs_csv(runs).encode()})
    if draw is not None and out is not None:
        draw(found, out)
    if as_json:
        click.echo(orjson.dumps(plain(found), option=orjson.OPT_INDENT_2))
    else:
        console().print(shown(found), crop=False)


def _runs(plan: Plan) -> Iterator[Run]:
    with _progress(plan.size) as (on_run, on_progress):
        yield from run(plan, on_run, on_progress)


@contextmanager
def _progress(size: int) -> Iterator[tuple[Callable[[int, str], None], Callable[[Progress], None]]]:
    """Show on a terminal what is simulated; yield the functions that report it."""
    with steps_bar(size) as report:
        number, name = 1, ""

        def on_run(started: int, what: str) -> None:
            nonlocal number, name
            number, name = started, f"{started} of {size}: {what}"
            report(number - 1, name)

        def on_progress(progress: Progress) -> None:
            report(number - 1 + progress.ended / max(1, progress.requests), name)

        yield on_run, on_progress
