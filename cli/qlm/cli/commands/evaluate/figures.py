"""Simulating figures of the papers on streaming experience, for `qlm evaluate streaming`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import click
import orjson

from qlm.cli.commands.options import errors_in_one_line
from qlm.cli.commands.simulation_options import check_folder, drawing
from qlm.cli.figures.catalogue import FIGURES
from qlm.cli.figures.report import claims, plain, rows_csv, shown
from qlm.cli.figures.running import run, simulations
from qlm.cli.inspect.console import console
from qlm.cli.progress import steps_bar
from qlm.cli.scenario.output import make_folder, write_files


def simulate_figures(
    figures: tuple[str, ...],
    *,
    seeds: tuple[int, ...],
    requests: int | None,
    out: Path | None,
    plots: bool,
    as_json: bool,
) -> None:
    """Simulate figures by name, all if there is none, and print each claim beside what came out."""
    check_folder(plots=plots, out=out)
    with errors_in_one_line():
        draw = drawing("streaming") if plots else None
        if out is not None:
            ends = (".csv", ".png") if plots else (".csv",)
            make_folder(out, [f"{name}{end}" for name in figures or FIGURES for end in ends])
        answer = {}
        for name in figures or FIGURES:
            figure = FIGURES[name].up_to(requests)
            with _progress(name, simulations(figure, seeds)) as on_run:
                rows = list(run(figure, seeds, on_run, requests=requests))
            answer[name] = plain(figure, rows)
            if not as_json:
                console().print(shown(figure, rows), crop=False)
                console().print(claims(figure, rows), crop=False)
            if out is not None:
                write_files(out, {f"{name}.csv": rows_csv(figure, rows).encode()})
            if draw is not None and out is not None:
                draw(figure, rows, out / f"{name}.png")
    if as_json:
        click.echo(orjson.dumps(answer, option=orjson.OPT_INDENT_2))


@contextmanager
def _progress(name: str, size: int) -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is simulated; yield the function that reports it."""
    with steps_bar(size) as report:
        started = count()
        yield lambda run: report(next(started), f"{name}, {run}")
