"""`qlm plan`: plan the problem in a file."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from qlm.cli.commands.plan_explain import explain_command
from qlm.cli.commands.plan_options import (
    INSTANCE,
    JSON,
    OBJECTIVE,
    PROBLEM,
    ROWS_SHOWN,
    check_instances,
    plan_errors,
    print_missed,
    print_plan,
    scaled_up,
    solve,
    solves,
)
from qlm.cli.commands.plan_show import show_command
from qlm.cli.plans.certify import certificate_lines, certificate_text, certified, plan_limits
from qlm.cli.plans.files import plan_text, read_problem, write_plan
from qlm.planner.certify.certificate import Certificate
from qlm.planner.methods import Limits, method
from qlm.planner.policy.misses import LATE_REQUESTS_MIN
from qlm.planner.problem import Objective, Plan, Problem
from qlm.planner.verify.referee import verify


@click.group("plan", invoke_without_command=True)
@PROBLEM
@solves
@OBJECTIVE
@INSTANCE
@ROWS_SHOWN
@JSON
@click.option(
    "--scale-up", is_flag=True, help="Also find the fewest additional instances that avoid the misses."
)
@click.option(
    "--certify",
    is_flag=True,
    help="Also prove how far the plan is from the best one, by column generation until --time-limit (600 s).",
)
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
    scale_up: bool,
    certify: bool,
    out: Path | None,
    **limits: Any,
) -> None:
    """Plan the problem in a JSON file: assign groups to instances and order them.

    docs/planner-problem.md describes the files.
    """
    if context.invoked_subcommand is not None:
        _refuse_options_before(context)
        return
    if problem_path is None:
        raise click.UsageError("--problem FILE is missing.")
    with plan_errors():
        problem = read_problem(problem_path)
        check_instances(problem, instances)
        given = Limits(objective=objective, stopwatch_s=time.perf_counter, **limits)
        plan, certificate = _planned(problem, name, given, certify)
        if scale_up:
            plan = scaled_up(problem, plan)
        report = verify(problem, plan, objective=objective)
        if out is not None:
            write_plan(out, plan)
    if certificate is not None and as_json:
        click.echo(certificate_text(problem, replace(certificate, plan=plan)))
    elif as_json:
        click.echo(plan_text(plan))
    else:
        print_plan(problem, plan, report, instances, rows, drawn=False)
        if report.late_requests >= LATE_REQUESTS_MIN:
            print_missed(problem, plan, report, rows)
        if objective == "paper" and objective not in method(name).minimises:
            click.echo(f"{name} does not minimise the objective {objective}, which only prices its plan")
        for line in () if certificate is None else certificate_lines(problem, certificate):
            click.echo(line)


def _planned(problem: Problem, name: str, limits: Limits, certify: bool) -> tuple[Plan, Certificate | None]:
    """Plan, and prove a bound if wanted."""
    if not certify:
        return solve(problem, name, limits), None
    began_s = time.perf_counter()
    plan = solve(problem, name, plan_limits(limits))
    certificate = certified(problem, plan, limits, began_s)
    return certificate.plan, certificate


def _refuse_options_before(context: click.Context) -> None:
    given = click.core.ParameterSource.COMMANDLINE
    for parameter in context.command.params:
        if parameter.name and context.get_parameter_source(parameter.name) is given:
            raise click.UsageError(f"{parameter.opts[0]} goes behind {context.invoked_subcommand}.")


plan_command.add_command(show_command)
plan_command.add_command(explain_command)
