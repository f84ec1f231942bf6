"""Progress of commands that take long, with an estimate of the time that is left."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


@contextmanager
def steps_bar(total: int, console: Console | None = None) -> Iterator[Callable[[float, str], None]]:
    """Show the progress of some equal steps on a terminal.

    Args:
        total: Number of steps.
        console: Where to show it; standard error if not given. Nothing is shown on one that is no terminal.

    Yields:
        A function that takes how many steps are done, with the share of the present one, and its name.
    """
    out = Console(stderr=True) if console is None else console
    columns = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as shown:
        task = shown.add_task("", total=total)

        def report(done: float, step: str) -> None:
            # One word of rich's markup would be lost.
            shown.update(task, completed=done, description=step.replace("[", r"\["))

        yield report
