"""What the commands about plans share: options, errors in one line, planning itself, printing."""

import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from qlm.cli.admin_client import AdminError
from qlm.cli.commands.inspect import console
from qlm.cli.commands.simulating import SEED, errors_in_one_line
from qlm.cli.plan_gantt import gantt
from qlm.cli.plan_missed import missed_lines
from qlm.cli.plan_tables import instance_tables, summary, violated
from qlm.domain.errors import InvalidValueError
from qlm.planner.exact.limits import SCENARIOS_MAX
from qlm.planner.limits import GROUPS_MAX, ITERATIONS_MAX, TIME_LIMIT_MAX_S, TIME_LIMIT_MIN_S
from qlm.planner.methods import DEFAULT_METHOD, METHODS, Limits, plan_by, with_bound, with_scale_up
from qlm.planner.policy.missed import Misses, missed
from qlm.planner.problem import Plan, Problem
from qlm.planner.verify.referee import Report

ROWS: Final = 10

PROBLEM: Final = click.option(
    "--problem", "problem_path", type=click.Path(path_type=Path), help="JSON file with a problem."
)
PLAN: Final = click.option(
    "--plan", "plan_path", type=click.Path(path_type=Path), help="JSON file with a plan of it."
)
OBJECTIVE: Final = click.option(
    "--objective",
    type=click.Choice(["requests", "paper"]),
    default="requests",
    show_default=True,
    help="What a plan costs: lateness and misses of each request, or the mean lateness of last requests.",
)
JSON: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
URL: Final = click.option(
    "--url",
    default="http://127.0.0.1:8000",
    envvar="QLM_URL",
    show_default=True,
    help="Address of a gateway (or QLM_URL), whose live plan is taken without --problem.",
)
INSTANCE: Final = click.option(
    "--instance", "instances", multiple=True, help="Only this one; may be repeated."
)
ROWS_SHOWN: Final = click.option(
    "--rows",
    type=click.IntRange(1, GROUPS_MAX),
    default=ROWS,
    show_default=True,
    help="Groups per instance, and of those that are late.",
)


def solves(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command what a planning method needs, as `name` and `limits`."""
    options = (
        click.option(
            "--method",
            "name",
            type=click.Choice(list(METHODS)),
            default=DEFAULT_METHOD,
            show_default=True,
            help="How to plan.",
        ),
        click.option(
            "--time-limit",
            "time_limit_s",
            type=click.FloatRange(TIME_LIMIT_MIN_S, TIME_LIMIT_MAX_S),
            help="Seconds until the best plan so far is given; the method's own limit if not given.",
        ),
        click.option(
            "--iterations",
            type=click.IntRange(0, ITERATIONS_MAX),
            help="The same in steps of the method: equal plans on any machine.",
        ),
        click.option("--seed", type=SEED, default=0, show_default=True, help="Of all randomness."),
        click.option(
            "--scenarios",
            type=click.IntRange(1, SCENARIOS_MAX),
            help="That the exact method samples; without, it works with the expectation itself.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@contextmanager
def plan_errors() -> Iterator[None]:
    """End the process with one line: 2 for what was asked, 1 for the file system and the gateway."""
    with errors_in_one_line():
        try:
            yield
        except AdminError as error:
            click.echo(f"qlm: {error}", err=True)
            sys.exit(1)


def solve(problem: Problem, name: str, limits: Limits) -> Plan:
    """Plan by a method of that name, with a bound where one can be given."""
    with spinner(f"planning by {name}"):
        began_s = time.perf_counter()
        plan = plan_by(name, problem, limits)
        took_s = time.perf_counter() - began_s
        if limits.objective == "requests":
            plan = with_bound(problem, plan)
    return plan if plan.solve_s is not None else dataclasses.replace(plan, solve_s=took_s)


def scaled_up(problem: Problem, plan: Plan) -> Plan:
    """Find the scale-up, which takes some twenty plans of larger fleets per kind."""
    with spinner("planning larger fleets"):
        return with_scale_up(problem, plan)


def print_plan(
    problem: Problem, plan: Plan, report: Report, instances: tuple[str, ...], rows: int, *, drawn: bool
) -> None:
    """Print the queues, drawn if asked for, and what the plan costs and does."""
    out = console()
    if drawn:
        for drawing in gantt(problem, report, out.width):
            out.print(drawing, no_wrap=True, overflow="crop")
    tables = list(instance_tables(problem, report, instances, rows))
    for table in tables:
        out.print(table)
    shown = len(problem.instances) if instances else len(tables)
    for line in summary(problem, plan, report, shown):
        out.print(line, highlight=False, markup=False, soft_wrap=True)


def print_missed(problem: Problem, plan: Plan, report: Report, rows: int) -> None:
    """Print what the plan misses, and why."""
    misses = missed_of(problem, plan, report, rows)
    if misses is None:
        click.echo("why groups are late is told of plans that can be served")
        return
    out = console()
    for line in missed_lines(problem, misses):
        out.print(line, highlight=False, markup=False, soft_wrap=isinstance(line, str))


def missed_of(problem: Problem, plan: Plan, report: Report, rows: int) -> Misses | None:
    """Find what a plan misses, with reasons for so many groups; None if it cannot be served."""
    return None if unservable(report) else missed(problem, plan, groups_max=rows)


@contextmanager
def spinner(doing: str) -> Iterator[None]:
    """Show on a terminal that something is going on."""
    errors = Console(stderr=True)
    if not errors.is_terminal:
        yield
        return
    with errors.status(doing):
        yield


def check_instances(problem: Problem, instances: tuple[str, ...]) -> None:
    """Refuse names of instances that the problem does not have.

    Raises:
        InvalidValueError: It has not.
    """
    known = {each.id for each in problem.instances}
    for name in instances:
        if name not in known:
            raise InvalidValueError("--instance", name, "an instance of the problem")


def unservable(report: Report) -> str | None:
    """Name the first group that a plan does not put where it could be served; None if all are.

    The order may be any.
    """
    serious = [each for each in report.violations if each.constraint in ("each_group_once", "runs_there")]
    return next(violated(serious[:1]), None)
