"""`qlm plan show`: the plan of a running QLM, or a stored one, drawn and checked."""

from pathlib import Path
from typing import Any

import click

from qlm.cli.commands.options import CONFIG, SEED, URL
from qlm.cli.commands.plan.options import INSTANCE, JSON, PLAN, PRICED_BY, PROBLEM, ROWS_SHOWN
from qlm.planner.limits import SAMPLES_MAX


@click.command("show")
@PROBLEM
@PLAN
@URL
@CONFIG
@PRICED_BY
@INSTANCE
@ROWS_SHOWN
@JSON
@click.option("--why", is_flag=True, help="Also explain the lateness of the groups with most late requests.")
@click.option(
    "--scale-up",
    is_flag=True,
    help="Also plan with one more instance of each kind, and find the fewest that avoid the misses.",
)
@click.option("--samples", type=click.IntRange(2, SAMPLES_MAX), help="Also price by this many samples.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Of the samples.")
def show_command(problem_path: Path | None, plan_path: Path | None, **options: Any) -> None:
    """Draw and check the plan of a running QLM, or a stored one.

    Without --problem the live plan is taken from the gateway at --url. The exit code is 1 if the plan
    violates a constraint.
    """
    _check_paths(problem_path, plan_path)
    # Imported here: referee and estimates take longer than the help.
    from qlm.cli.commands.plan.showing import show_plan

    show_plan(problem_path, plan_path, **options)


def _check_paths(problem_path: Path | None, plan_path: Path | None) -> None:
    if problem_path is None and plan_path is not None:
        raise click.UsageError("--plan needs --problem FILE.")
    if problem_path is not None and plan_path is None:
        raise click.UsageError("--plan FILE is missing.")
