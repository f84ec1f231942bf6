"""`qlm plan explain`: the reasons for the position of a group, or of a request of a running QLM."""

from pathlib import Path
from typing import Any

import click

from qlm.cli.commands.options import CONFIG, URL
from qlm.cli.commands.plan.options import JSON, PLAN, PRICED_BY, PROBLEM, solves


@click.command("explain")
@click.argument("name_asked", metavar="GROUP_OR_REQUEST")
@PROBLEM
@PLAN
@URL
@CONFIG
@solves
@PRICED_BY
@JSON
@click.pass_context
def explain_command(
    context: click.Context, /, name_asked: str, problem_path: Path | None, **options: Any
) -> None:
    """Explain the position of a group or request, with the cost of other positions.

    Without --problem it is looked up in the running QLM at --url. With --problem it is a group of that
    problem; without --plan that problem is planned first, by --method.
    """
    # Imported here: planning takes longer than the help.
    from qlm.cli.commands.plan import explained

    if problem_path is None:
        _refuse_without_problem(context)
        names = ("url", "config_file", "objective", "as_json")
        explained.explain_live(name_asked, **{name: options[name] for name in names})
    else:
        del options["url"], options["config_file"]
        explained.explain_stored(name_asked, problem_path, **options)


def _refuse_without_problem(context: click.Context) -> None:
    """Refuse options about planning: the live plan exists already."""
    of_files = ("plan_path", "name", "time_limit_s", "iterations", "seed", "scenarios")
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in of_files and source is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{parameter.opts[0]} needs --problem FILE.")
