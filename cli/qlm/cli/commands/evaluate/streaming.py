"""`qlm evaluate streaming`: simulate figures of the papers on streaming experience."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import click
import orjson

from qlm.cli.commands.options import SEED, errors_in_one_line
from qlm.cli.commands.simulation_options import check_folder, drawing
from qlm.cli.figures.catalogue import FIGURES
from qlm.cli.figures.report import claims, plain, rows_csv, shown
from qlm.cli.figures.running import run, simulations
from qlm.cli.inspect.console import console
from qlm.cli.progress import steps_bar
from qlm.cli.scenario.output import make_folder, write_files


@click.command("streaming")
@click.argument("figures", nargs=-1, type=click.Choice(tuple(FIGURES)), metavar="[FIGURE]...")
@click.option(
    "--seed",
    "seeds",
    type=SEED,
    multiple=True,
    default=(1,),
    show_default=True,
    help="Seed of all randomness; may be repeated.",
)
@click.option("--requests", type=click.IntRange(min=1), help="Only the first N requests: a quick look.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for FIGURE.csv.")
@click.option("--plots", is_flag=True, help="Also draw FIGURE.png into the folder.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def streaming_command(
    figures: tuple[str, ...],
    seeds: tuple[int, ...],
    requests: int | None,
    out: Path | None,
    plots: bool,
    as_json: bool,
) -> None:
    """Simulate figures of the papers on streaming experience; all if none is named.

    It prints each paper's claim beside the same figure here. docs/streaming-figures.md describes the figures
    and what they cannot show.
    """
    check_folder(plots=plots, out=out)
    with errors_in_one_line():
        draw = drawing("streaming") if plots else None
        if out is not None:
            make_folder(out)
        answer = {}
        for name in figures or FIGURES:
            with _progress(name, simulations(FIGURES[name], seeds)) as on_run:
                rows = list(run(FIGURES[name], seeds, on_run, requests=requests))
            answer[name] = plain(FIGURES[name], rows)
            if not as_json:
                console().print(shown(FIGURES[name], rows), crop=False)
                console().print(claims(FIGURES[name], rows), crop=False)
            if out is not None:
                write_files(out, {f"{name}.csv": rows_csv(rows).encode()})
            if draw is not None and out is not None:
                draw(FIGURES[name], rows, out / f"{name}.png")
    if as_json:
        click.echo(orjson.dumps(answer, option=orjson.OPT_INDENT_2))


@contextmanager
def _progress(name: str, size: int) -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is simulated; yield the function that reports it."""
    with steps_bar(size) as report:
        started = count()
        yield lambda run: report(next(started), f"{name}, {run}")
