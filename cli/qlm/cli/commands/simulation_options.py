"""Options, progress bar and pictures shared by the commands that simulate."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem

from qlm.cli.commands.options import SEED
from qlm.domain.errors import QlmError, extra_hint
from qlm.planner.policy.default import DEFAULT_POLICY
from qlm.simulator.policy_names import POLICY_NAMES, RULE_NAMES

if TYPE_CHECKING:
    from qlm.simulator.policies import Policy
    from qlm.simulator.simulation import Progress as SimulationProgress

BAR_AFTER_S: Final = 1.0
"""Shorter runs show no progress bar."""


class PolicyType(click.ParamType["Policy"]):
    """A policy with its rules, by name."""

    name = "policy"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> "Policy":
        """Return the policy; fail with all names if there is none of that name."""
        # Imported here: all planners take longer than the help.
        from qlm.simulator.policies import Policy
        from qlm.simulator.rules import policy_named

        if isinstance(value, Policy):
            return value
        try:
            return policy_named(value)
        except QlmError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete the name of a policy, and then those of rules."""
        known, plus, _ = incomplete.rpartition("+")
        names = [f"{known}+{rule}" for rule in RULE_NAMES] if plus else list(POLICY_NAMES)
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def simulates(command: Callable[..., None]) -> Callable[..., None]:
    """Add the argument SCENARIO and the options of a simulation."""
    parameters = (
        click.argument("scenario", type=click.Path(path_type=Path)),
        click.option(
            "--policy",
            type=PolicyType(),
            default=DEFAULT_POLICY,
            show_default=True,
            help="Policy that orders requests and assigns them to instances: "
            f"{', '.join(POLICY_NAMES)}. Rules are added to it by name, as in edf+demote: "
            f"{', '.join(RULE_NAMES)}.",
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

    for parameter in reversed(parameters):
        command = parameter(command)
    return command


@contextmanager
def bar(doing: str) -> "Iterator[Callable[[SimulationProgress], None]]":
    """Show the progress of a long simulation on a terminal; yield the function that reports it."""
    # Imported here: this module is loaded for the help, too.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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

    def report(progress: "SimulationProgress") -> None:
        virtual = f"{progress.simulated_s:.0f} s simulated"
        shown.update(task, total=progress.requests, completed=progress.ended, virtual=virtual)
        waited = time.monotonic() - began_s > BAR_AFTER_S
        if waited and shown.console.is_terminal and not shown.live.is_started:
            shown.start()

    try:
        yield report
    finally:
        # Stopping one that was never shown writes an empty line.
        if shown.live.is_started:
            shown.stop()


def check_folder(*, plots: bool, out: Path | None) -> None:
    """Check that pictures have a folder.

    Raises:
        click.UsageError: They are wanted, and there is none.
    """
    if plots and out is None:
        raise click.UsageError("--plots needs --out, a folder for the pictures.")


def drawing(module: str) -> Callable[..., Any]:
    """Load `draw_all` of a module of pictures; raise QlmError if the plotting library is missing."""
    try:
        draw_all: Callable[..., Any] = import_module(f"qlm.cli.plots.{module}").draw_all
    except ModuleNotFoundError as error:
        raise QlmError(f"--plots needs {error.name}: {extra_hint('plots')}") from error
    return draw_all
