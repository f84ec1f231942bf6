"""What the commands that simulate share: options, errors in one line, a progress bar, what draws pictures."""

import sys
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
from qlm.domain.shown import cut
from qlm.simulator.policies import POLICIES
from qlm.simulator.simulation import Progress as HowFar

BAR_AFTER_S: Final = 1.0
"""Shorter runs show no progress bar."""


SEED: Final = click.IntRange(min=0, max=2**63 - 1)
"""Seeds that a summary can hold as a number."""


def simulates(*, policy: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a SCENARIO and what to simulate it with; `policy` is the default one."""
    parameters = (
        click.argument("scenario", type=click.Path(path_type=Path)),
        click.option(
            "--policy",
            type=click.Choice(sorted(POLICIES)),
            default=policy,
            show_default=True,
            help="How requests are ordered and placed.",
        ),
        click.option("--seed", type=SEED, default=1, show_default=True, help="Of all randomness."),
        click.option(
            "--load",
            type=click.FloatRange(min=0, min_open=True),
            default=1.0,
            show_default=True,
            help="Factor on all arrival rates.",
        ),
        click.option("--plots", is_flag=True, help="Draw pictures into the folder, too."),
    )

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for parameter in reversed(parameters):
            command = parameter(command)
        return command

    return decorate


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """End the process with one line about what is wrong: 2 for what was asked, 1 for the file system."""
    try:
        yield
    except QlmError as error:
        click.echo(f"qlm: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        known = [cut(str(each)) for each in (error.filename, error.strerror) if each is not None]
        click.echo(f"qlm: {': '.join(known) or str(error) or type(error).__name__}", err=True)
        sys.exit(1)


@contextmanager
def bar(doing: str) -> Iterator[Callable[[HowFar], None]]:
    """Show how far a long simulation is, on a terminal; what is yielded is to be told."""
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

    def tell(far: HowFar) -> None:
        virtual = f"{far.simulated_s:.0f} s simulated"
        shown.update(task, total=far.requests, completed=far.ended, virtual=virtual)
        waited = time.monotonic() - began_s > BAR_AFTER_S
        if waited and shown.console.is_terminal and not shown.live.is_started:
            shown.start()

    try:
        yield tell
    finally:
        shown.stop()


def drawing(module: str) -> Callable[..., Any]:
    """Load `draw_all` of a module of pictures; what draws is not needed for anything else.

    Raises:
        QlmError: It is not installed.
    """
    try:
        draw_all: Callable[..., Any] = import_module(f"qlm.cli.{module}").draw_all
    except ModuleNotFoundError as error:
        raise QlmError(f"--plots needs {error.name}: pip install 'qlm-serving[plots]'") from error
    return draw_all
