"""Options, error handling, planning and printing shared by the commands about plans."""

import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from qlm.cli.commands.inspect import console
from qlm.cli.commands.options import errors_in_one_line
from qlm.cli.commands.simulation_options import SEED
from qlm.cli.inspect.admin_client import AdminError
from qlm.cli.plans.gantt import gantt
from qlm.cli.plans.missed import missed_lines
from qlm.cli.plans.tables import instance_tables, summary, violated
from qlm.domain.errors import InvalidValueError
from qlm.planner.exact.limits import SCENARIOS_MAX
from qlm.planner.limits import GROUPS_MAX, ITERATIONS_MAX, TIME_LIMIT_MAX_S, TIME_LIMIT_MIN_S
from qlm.planner.methods import DEFAULT_METHOD, METHODS, Limits, plan_by, with_bound, with_scale_up
from qlm.planner.policy.misses import Misses, find_misses
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
    help="Cost of a plan: lateness and misses of each request, or the mean lateness of last requests.",
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
            type=click.Choice(list(METHODS)),
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


def solve(problem: Problem, name: str, limits: Limits) -> Plan:
    """Plan by the named method, with a lower bound of the cost where there is one."""
    with spinner(f"planning by {name}"):
        began_s = time.perf_counter()
        plan = plan_by(name, problem, limits)
        took_s = time.perf_counter() - began_s
        if limits.objective == "requests":
            plan = with_bound(problem, plan)
    return plan if plan.solve_s is not None else dataclasses.replace(plan, solve_s=took_s)


def scaled_up(problem: Problem, plan: Plan) -> Plan:
    """Add the recommended scale-up, which takes about twenty plans of larger fleets per kind."""
    with spinner("planning larger fleets"):
        return with_scale_up(problem, plan)


def print_plan(
    problem: Problem, plan: Plan, report: Report, instances: tuple[str, ...], rows: int, *, drawn: bool
) -> None:
    """Print the queues, as a drawing too if `drawn`, and a summary of the plan."""
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
    """Print the groups that the plan makes late, with reasons."""
    misses = servable_misses(problem, plan, report, rows)
    if misses is None:
        click.echo("lateness is explained only for plans that can be served")
        return
    out = console()
    for line in missed_lines(problem, misses):
        out.print(line, highlight=False, markup=False, soft_wrap=isinstance(line, str))


def servable_misses(problem: Problem, plan: Plan, report: Report, rows: int) -> Misses | None:
    """Find the late groups of a plan, with reasons for `rows` of them; None if it cannot be served."""
    return None if unservable(report) else find_misses(problem, plan, groups_max=rows)


@contextmanager
def spinner(doing: str) -> Iterator[None]:
    """Show a spinner on a terminal."""
    errors = Console(stderr=True)
    if not errors.is_terminal:
        yield
        return
    with errors.status(doing):
        yield


def check_instances(problem: Problem, instances: tuple[str, ...]) -> None:
    """Raise InvalidValueError for an instance that the problem does not have."""
    known = {each.id for each in problem.instances}
    for name in instances:
        if name not in known:
            raise InvalidValueError("--instance", name, "an instance of the problem")


def unservable(report: Report) -> str | None:
    """Describe the first group that a plan assigns to no instance able to serve it, if any."""
    serious = [each for each in report.violations if each.constraint in ("each_group_once", "runs_there")]
    return next(violated(serious[:1]), None)
