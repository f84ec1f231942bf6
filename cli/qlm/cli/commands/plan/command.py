"""`qlm plan`: plan the problem in a file."""

from pathlib import Path
from typing import Any, Final

import click

from qlm.cli.commands.plan.options import (
    INSTANCE,
    JSON,
    OBJECTIVE,
    PROBLEM,
    ROWS_SHOWN,
    solves,
)
from qlm.cli.lazy import LazyGroup
from qlm.planner.problem import Objective

_HELP: Final = {
    "plan.show": {"show": "Draw and check the plan of a running QLM, or a stored one."},
    "plan.explain": {
        "explain": "Explain the position of a group or request, with the cost of other positions."
    },
}


@click.group("plan", cls=LazyGroup, listed=_HELP, invoke_without_command=True)
@PROBLEM
@solves
@OBJECTIVE
@INSTANCE
@ROWS_SHOWN
@JSON
@click.option(
    "--scale-up",
    is_flag=True,
    help="Also plan with one more instance of each kind, and find the fewest that avoid the misses.",
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
    # Imported here: planning needs packages that take long to import.
    from qlm.cli.commands.plan.problem import plan_problem

    plan_problem(
        problem_path,
        name,
        limits,
        objective=objective,
        instances=instances,
        rows=rows,
        as_json=as_json,
        scale_up=scale_up,
        certify=certify,
        out=out,
    )


def _refuse_options_before(context: click.Context) -> None:
    given = click.core.ParameterSource.COMMANDLINE
    for parameter in context.command.params:
        if parameter.name and context.get_parameter_source(parameter.name) is given:
            raise click.UsageError(f"{parameter.opts[0]} goes behind {context.invoked_subcommand}.")
