"""The command `qlm`. It imports the module of a subcommand only when that subcommand is called."""

import re
from importlib import import_module
from typing import Any, Final

import click

from qlm.domain.shown import SHOWN_CHARACTERS_MAX, cut

_LONG_WORD: Final = re.compile(rf"\S{{{SHOWN_CHARACTERS_MAX},}}")


_HELP: Final = {
    "run": {
        "serve": "Run everything on this machine: gateway, controller, and an agent per instance.",
        "gateway": "Run a gateway with its HTTP, gRPC and admin listeners. Needs RabbitMQ and Redis.",
        "controller": "Run the controller: grouping and planning. Needs RabbitMQ and Redis.",
        "agent": "Run the agent of INSTANCE beside its engines. Needs RabbitMQ and Redis.",
        "agents": "Run the agents of all instances as Ray actors. Needs RabbitMQ and Redis.",
        "emulate": "Run an emulated engine: vLLM's API with the speed of a given accelerator.",
    },
    "inspect": {
        "queues": "Show the class queues and the virtual queue of each instance.",
        "groups": "Show the request groups and the virtual queues they are in.",
        "instances": "Show the live instances: models, load, and the operations they performed.",
        "requests": "List requests, newest first; with REQUEST_ID show the event history of one.",
        "history": "Show what the controllers have learned of each model, and how old it is.",
        "doctor": "Check a running QLM and this machine, and suggest repairs.",
    },
    "control": {
        "cancel": "Cancel a request: at once if it waits, else when its engine has released it.",
        "drain": "Return the work of an instance to the queue and shut its agent down.",
    },
    "adopt": {
        "adopt": "Make the RabbitMQ and the Redis of a configuration one deployment.",
    },
    "plan": {
        "plan": "Plan the problem in a JSON file: assign groups to instances and order them.",
    },
    "profile": {
        "profile": "Measure the engine at URL, fit its speed, and write a profile.",
    },
    "roofline": {
        "roofline": "Compute the profile of an unmeasured model from its config.json.",
    },
    "bench.command": {
        "bench": "Measure a server under load as its readers live through it, or rate saved results.",
    },
    "simulate": {
        "simulate": "Simulate the scenario in a YAML file: production decisions in virtual time.",
    },
    "evaluate": {
        "evaluate": "Measure the accuracy of the estimates and of the engine model.",
    },
}
"""First line of help of each subcommand, by its module below `qlm.cli.commands`."""

_MODULES: Final = {name: module for module, helps in _HELP.items() for name in helps}


class _Commands(click.Group):
    """Group of subcommands that are listed from a table and loaded when called.

    Errors about an option do not repeat the whole of a long value.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            message = _LONG_WORD.sub(lambda word: cut(word[0]), error.format_message())
            raise click.UsageError(message, ctx=error.ctx) from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the subcommand to call, and load it."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, None if listed is None else load_command(str(listed.name)), rest


def load_command(name: str) -> click.Command:
    """Import a subcommand.

    Raises:
        click.ClickException: A package that it needs is not installed.
    """
    try:
        module = import_module(f"qlm.cli.commands.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("qlm"):
            raise
        raise click.ClickException(f"{name} needs {error.name}, which is not installed here") from error
    command: click.Command = getattr(module, f"{name}_command")
    return command


@click.group(
    cls=_Commands,
    commands=[click.Command(name, help=text) for helps in _HELP.values() for name, text in helps.items()],
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="qlm-serving", prog_name="qlm")
def main() -> None:
    """QLM: a queue manager that meets deadlines when many LLMs share few GPUs."""


if __name__ == "__main__":  # `python -m benchmarks.compiled -m qlm.cli.main ...`
    main()
