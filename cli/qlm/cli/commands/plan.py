"""Planning from the command line: `qlm plan`, `qlm plan show`, `qlm plan explain`."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from rich.console import Console

from qlm.cli.commands.inspect import console
from qlm.cli.commands.options import print_json
from qlm.cli.commands.simulating import SEED, errors_in_one_line
from qlm.cli.plan_files import plan_text, read_plan, read_problem, write_plan
from qlm.cli.plan_gantt import gantt
from qlm.cli.plan_tables import (
    explanation,
    instance_tables,
    sampled,
    summary,
    violated,
)
from qlm.domain.errors import InvalidValueError
from qlm.domain.ids import GroupId
from qlm.planner.exact.limits import SCENARIOS_MAX
from qlm.planner.limits import GROUPS_MAX, ITERATIONS_MAX, SAMPLES_MAX, TIME_LIMIT_MAX_S, TIME_LIMIT_MIN_S
from qlm.planner.methods import DEFAULT_METHOD, METHODS, Limits, method, plan_by, with_bound
from qlm.planner.problem import Objective, Plan, Problem
from qlm.planner.verify.explain import explain
from qlm.planner.verify.monte_carlo import sample
from qlm.planner.verify.referee import Report, verify

ROWS: Final = 10
PLACES_SHOWN: Final = 10

_PROBLEM = click.option("--problem", "problem_path", type=click.Path(path_type=Path), help="JSON file.")
_PLAN = click.option("--plan", "plan_path", type=click.Path(path_type=Path), help="JSON file.")
_OBJECTIVE = click.option(
    "--objective",
    type=click.Choice(["requests", "paper"]),
    default="requests",
    show_default=True,
    help="What a plan costs: lateness and misses of each request, or the mean lateness of last requests.",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_INSTANCE = click.option("--instance", "instances", multiple=True, help="Only this one; may be repeated.")
_ROWS = click.option(
    "--rows", type=click.IntRange(1, GROUPS_MAX), default=ROWS, show_default=True, help="Groups per instance."
)


def _solves(command: Callable[..., None]) -> Callable[..., None]:
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


@click.group("plan", invoke_without_command=True)
@_PROBLEM
@_solves
@_OBJECTIVE
@_INSTANCE
@_ROWS
@_JSON
@click.option("--out", type=click.Path(path_type=Path), help="File for the plan, as JSON.")
@click.pass_context
def plan_command(
    context: click.Context,
    /,
    problem_path: Path | None,
    name: str,
    objective: Objective,
    instances: tuple[str, ...],
    rows: int,
    as_json: bool,
    out: Path | None,
    **limits: Any,
) -> None:
    """Plan the problem in a JSON file: which instance serves which groups in which order.

    docs/planner-problem.md describes the files.
    """
    if context.invoked_subcommand is not None:
        _refuse_options_before(context)
        return
    path = _needed(problem_path)
    with errors_in_one_line():
        problem = read_problem(path)
        _check_instances(problem, instances)
        plan = _solve(problem, name, Limits(objective=objective, stopwatch_s=time.perf_counter, **limits))
        report = verify(problem, plan, objective=objective)
        if out is not None:
            write_plan(out, plan)
    if as_json:
        click.echo(plan_text(plan))
    else:
        _print(problem, plan, report, instances, rows, drawn=False)
        if objective == "paper" and objective not in method(name).minimises:
            click.echo(f"{name} does not look at the objective {objective}, which only prices its plan")


@plan_command.command("show")
@_PROBLEM
@_PLAN
@_OBJECTIVE
@_INSTANCE
@_ROWS
@_JSON
@click.option("--samples", type=click.IntRange(2, SAMPLES_MAX), help="Price by so many samples, too.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Of the samples.")
def show_command(
    problem_path: Path | None,
    plan_path: Path | None,
    objective: Objective,
    instances: tuple[str, ...],
    rows: int,
    as_json: bool,
    samples: int | None,
    seed: int,
) -> None:
    """Draw a stored plan, and check it; exit code 1 if it violates a constraint."""
    path = _needed(problem_path)
    if plan_path is None:
        raise click.UsageError("--plan FILE is missing.")
    with errors_in_one_line():
        problem = read_problem(path)
        _check_instances(problem, instances)
        plan = read_plan(plan_path, problem)
        report = verify(problem, plan, objective=objective)
        estimate = None
        if samples is not None:
            with _spinner("sampling"):
                generator = np.random.default_rng(seed)
                estimate = sample(problem, plan, generator=generator, samples=samples, objective=objective)
    if as_json:
        plain = dataclasses.asdict(report)
        print_json(plain | {"sampled": None if estimate is None else dataclasses.asdict(estimate)})
    else:
        _print(problem, plan, report, instances, rows, drawn=True)
        if estimate is not None:
            click.echo(sampled(estimate))
    if report.violations:
        raise SystemExit(1)


@plan_command.command("explain")
@click.argument("group")
@_PROBLEM
@_PLAN
@_solves
@_OBJECTIVE
@_JSON
def explain_command(
    group: str,
    problem_path: Path | None,
    plan_path: Path | None,
    name: str,
    objective: Objective,
    as_json: bool,
    **limits: Any,
) -> None:
    """Tell why GROUP stands where it stands in a plan, and what other places would cost.

    Without --plan the plan is made first, by --method.
    """
    path = _needed(problem_path)
    with errors_in_one_line():
        problem = read_problem(path)
        _check_group(problem, group)
        if plan_path is None:
            plan = _solve(problem, name, Limits(objective=objective, stopwatch_s=time.perf_counter, **limits))
        else:
            plan = read_plan(plan_path, problem)
            _check_feasible(plan_path, verify(problem, plan, objective=objective))
        told = explain(problem, plan, GroupId(group), objective=objective)
    if as_json:
        print_json(dataclasses.asdict(told))
        return
    out = console()
    for part in explanation(problem, told, PLACES_SHOWN):
        out.print(part, highlight=False, markup=False)


def _solve(problem: Problem, name: str, limits: Limits) -> Plan:
    with _spinner(f"planning by {name}"):
        began_s = time.perf_counter()
        plan = plan_by(name, problem, limits)
        took_s = time.perf_counter() - began_s
        if limits.objective == "requests":
            plan = with_bound(problem, plan)
    return plan if plan.solve_s is not None else dataclasses.replace(plan, solve_s=took_s)


def _print(
    problem: Problem, plan: Plan, report: Report, instances: tuple[str, ...], rows: int, *, drawn: bool
) -> None:
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


@contextmanager
def _spinner(doing: str) -> Iterator[None]:
    """Show on a terminal that something is going on."""
    errors = Console(stderr=True)
    if not errors.is_terminal:
        yield
        return
    with errors.status(doing):
        yield


def _needed(path: Path | None) -> Path:
    if path is None:
        raise click.UsageError("--problem FILE is missing.")
    return path


def _refuse_options_before(context: click.Context) -> None:
    given = click.core.ParameterSource.COMMANDLINE
    for parameter in context.command.params:
        if parameter.name and context.get_parameter_source(parameter.name) is given:
            raise click.UsageError(f"{parameter.opts[0]} goes behind {context.invoked_subcommand}.")


def _check_instances(problem: Problem, instances: tuple[str, ...]) -> None:
    known = {each.id for each in problem.instances}
    for name in instances:
        if name not in known:
            raise InvalidValueError("--instance", name, "an instance of the problem")


def _check_group(problem: Problem, group: str) -> None:
    if not any(each.id == group for each in problem.groups):
        raise InvalidValueError("GROUP", group, "a group of the problem")


def _check_feasible(path: Path, report: Report) -> None:
    """Refuse plans with groups that are not where they could be served; the order may be any."""
    serious = [each for each in report.violations if each.constraint in ("each_group_once", "runs_there")]
    if serious:
        lines = "; ".join(violated(serious[:1]))
        raise InvalidValueError("--plan", str(path), f"a plan that can be served; {lines}")
