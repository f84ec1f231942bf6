"""Options and error handling shared by the commands about plans."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, get_args

import click

from qlm.cli.commands.options import SEED, errors_in_one_line
from qlm.cli.inspect.admin_client import AdminError
from qlm.planner.exact.limits import SCENARIOS_MAX
from qlm.planner.limits import GROUPS_MAX, ITERATIONS_MAX, TIME_LIMIT_MAX_S, TIME_LIMIT_MIN_S
from qlm.planner.method_names import DEFAULT_METHOD, METHOD_NAMES
from qlm.planner.problem import Objective

ROWS: Final = 10

PROBLEM: Final = click.option(
    "--problem", "problem_path", type=click.Path(path_type=Path), help="JSON file with a problem."
)
PLAN: Final = click.option(
    "--plan", "plan_path", type=click.Path(path_type=Path), help="JSON file with a plan of it."
)
OBJECTIVE: Final = click.option(
    "--objective",
    type=click.Choice(get_args(Objective)),
    default="requests",
    show_default=True,
    help="Cost of a plan: lateness and misses of each request, or the mean lateness of last requests.",
)
PRICED_BY: Final = click.option(
    "--objective",
    type=click.Choice(get_args(Objective)),
    help="Cost of a plan, as in `qlm plan`; without it, that which the plan was made for.",
)
JSON: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
INSTANCE: Final = click.option(
    "--instance", "instances", multiple=True, help="Show only this instance; may be repeated."
)
ROWS_SHOWN: Final = click.option(
    "--rows",
    type=click.IntRange(1, GROUPS_MAX),
    default=ROWS,
    show_default=True,
    help="Groups shown per instance, and late groups explained.",
)


def solves(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a planning method, passed as `name` and `limits`."""
    options = (
        click.option(
            "--method",
            "name",
            type=click.Choice(METHOD_NAMES),
            default=DEFAULT_METHOD,
            show_default=True,
            help="Planning method.",
        ),
        click.option(
            "--time-limit",
            "time_limit_s",
            type=click.FloatRange(TIME_LIMIT_MIN_S, TIME_LIMIT_MAX_S),
            help="Seconds until the best plan so far is returned; without it, the method's own limit.",
        ),
        click.option(
            "--iterations",
            type=click.IntRange(0, ITERATIONS_MAX),
            help="Limit in steps of the method instead: equal plans on any machine.",
        ),
        click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of all randomness."),
        click.option(
            "--scenarios",
            type=click.IntRange(1, SCENARIOS_MAX),
            help="Scenarios that the exact method samples; without it, expectations are used.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@contextmanager
def plan_errors() -> Iterator[None]:
    """End the process with one line: code 2 for bad input, 1 for the file system and the gateway."""
    with errors_in_one_line():
        try:
            yield
        except AdminError as error:
            click.echo(f"qlm: {error}", err=True)
            sys.exit(1)
