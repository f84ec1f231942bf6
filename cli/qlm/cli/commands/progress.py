"""What the commands that simulate share: a progress bar, and pictures where there is what draws them."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from qlm.domain.errors import QlmError
from qlm.simulator.simulation import Progress as HowFar

BAR_AFTER_S: Final = 1.0
"""Shorter runs show no progress bar."""


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
