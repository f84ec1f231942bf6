"""`qlm plan`: plan the problem in a file."""

import time
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
from qlm.cli.plans.files import plan_text, read_problem, write_plan
from qlm.planner.methods import Limits, method
from qlm.planner.policy.misses import LATE_REQUESTS_MIN
from qlm.planner.problem import Objective
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
        plan = solve(problem, name, Limits(objective=objective, stopwatch_s=time.perf_counter, **limits))
        if scale_up:
            plan = scaled_up(problem, plan)
        report = verify(problem, plan, objective=objective)
        if out is not None:
            write_plan(out, plan)
    if as_json:
        click.echo(plan_text(plan))
    else:
        print_plan(problem, plan, report, instances, rows, drawn=False)
        if report.late_requests >= LATE_REQUESTS_MIN:
            print_missed(problem, plan, report, rows)
        if objective == "paper" and objective not in method(name).minimises:
            click.echo(f"{name} does not minimise the objective {objective}, which only prices its plan")


def _refuse_options_before(context: click.Context) -> None:
    given = click.core.ParameterSource.COMMANDLINE
    for parameter in context.command.params:
        if parameter.name and context.get_parameter_source(parameter.name) is given:
            raise click.UsageError(f"{parameter.opts[0]} goes behind {context.invoked_subcommand}.")


plan_command.add_command(show_command)
plan_command.add_command(explain_command)
