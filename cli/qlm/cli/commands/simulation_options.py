"""Options, progress bar and pictures shared by the commands that simulate."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from qlm.domain.errors import QlmError
from qlm.simulator.policies import POLICIES
from qlm.simulator.simulation import Progress as SimulationProgress

BAR_AFTER_S: Final = 1.0
"""Shorter runs show no progress bar."""


SEED: Final = click.IntRange(min=0, max=2**63 - 1)
"""Seeds that fit a JSON integer of a summary."""


def simulates(*, policy: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the argument SCENARIO and the options of a simulation; `policy` is the default policy."""
    parameters = (
        click.argument("scenario", type=click.Path(path_type=Path)),
        click.option(
            "--policy",
            type=click.Choice(sorted(POLICIES)),
            default=policy,
            show_default=True,
            help="Policy that orders requests and assigns them to instances.",
        ),
        click.option("--seed", type=SEED, default=1, show_default=True, help="Seed of all randomness."),
        click.option(
            "--load",
            type=click.FloatRange(min=0, min_open=True),
            default=1.0,
            show_default=True,
            help="Factor on all arrival rates.",
        ),
        click.option("--plots", is_flag=True, help="Also draw pictures into the folder."),
    )

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for parameter in reversed(parameters):
            command = parameter(command)
        return command

    return decorate


@contextmanager
def bar(doing: str) -> Iterator[Callable[[SimulationProgress], None]]:
    """Show the progress of a long simulation on a terminal; yield the function that reports it."""
    shown = Progress(
        TextColumn(doing),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("requests, {task.fields[virtual]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    began_s = time.monotonic()
    task = shown.add_task("", total=None, virtual="0 s")

    def report(progress: SimulationProgress) -> None:
        virtual = f"{progress.simulated_s:.0f} s simulated"
        shown.update(task, total=progress.requests, completed=progress.ended, virtual=virtual)
        waited = time.monotonic() - began_s > BAR_AFTER_S
        if waited and shown.console.is_terminal and not shown.live.is_started:
            shown.start()

    try:
        yield report
    finally:
        shown.stop()


def drawing(module: str) -> Callable[..., Any]:
    """Load `draw_all` of a module of pictures; raise QlmError if the plotting library is missing."""
    try:
        draw_all: Callable[..., Any] = import_module(f"qlm.cli.plots.{module}").draw_all
    except ModuleNotFoundError as error:
        raise QlmError(f"--plots needs {error.name}: install qlm-serving with the extra `plots`") from error
    return draw_all
