"""The command `qlm`."""

import re
from typing import Any, Final

import click

from qlm.cli.commands import evaluate, inspect, plan, profile, run, simulate, steer
from qlm.domain.shown import SHOWN_CHARACTERS_MAX, cut

_LONG_WORD: Final = re.compile(rf"\S{{{SHOWN_CHARACTERS_MAX},}}")


class _Commands(click.Group):
    """Says what is wrong with an option without repeating all of a long value."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            message = _LONG_WORD.sub(lambda word: cut(word[0]), error.format_message())
            raise click.UsageError(message, ctx=error.ctx) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="qlm-serving", prog_name="qlm")
def main() -> None:
    """QLM: a queue manager that meets deadlines when many LLMs share few GPUs."""


for command in (
    *run.COMMANDS,
    *inspect.COMMANDS,
    *steer.COMMANDS,
    plan.plan_command,
    profile.profile_command,
    simulate.simulate_command,
    evaluate.evaluate_command,
):
    main.add_command(command)
