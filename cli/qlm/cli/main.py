"""The command `qlm`. It imports the module of a subcommand only when that subcommand is called."""

import re
import sys
from typing import Any, Final

import click

from qlm.cli.file_errors import one_line
from qlm.cli.lazy import LazyGroup, missing
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
    "init": {
        "init": "Write a first configuration into FILE, or print it.",
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
    "batches": {
        "batches": "List, show, cancel, pause and resume the batches of clients.",
    },
    "keys": {
        "keys": "Create, list and revoke the API keys of clients (`http.api_keys: required`).",
    },
    "adopt": {
        "adopt": "Make the RabbitMQ and the Redis of a configuration one deployment.",
    },
    "plan.command": {
        "plan": "Plan the problem in a JSON file: assign groups to instances and order them.",
    },
    "profile.command": {
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
    "compare": {
        "compare": "Simulate the same requests under several policies, and print one table.",
    },
    "evaluate.command": {
        "evaluate": "Measure the accuracy of estimates and engine model, or simulate figures of papers.",
    },
}
"""First line of help of each subcommand, by its module below `qlm.cli.commands`."""


class _Commands(LazyGroup):
    """The subcommands of `qlm`. Errors about an option do not repeat the whole of a long value."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line; output that cannot be written ends it with one line and exit status 1."""
        try:
            return super().__call__(*args, **kwargs)
        except OSError as error:
            if isinstance(error, TimeoutError | ConnectionError) and not isinstance(error, BrokenPipeError):
                raise  # a defect of the command: it does not come from the output
            click.echo(one_line(error), err=True)
            sys.exit(1)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand.

        Raises:
            click.ClickException: A package that it needs is not installed.
        """
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            raise missing(str(ctx.invoked_subcommand), error) from error
        except click.UsageError as error:
            message = _LONG_WORD.sub(lambda word: cut(word[0]), error.format_message())
            raise click.UsageError(message, ctx=error.ctx) from error


@click.group(
    cls=_Commands,
    listed=_HELP,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="qlm-serving", prog_name="qlm")
def main() -> None:
    """QLM: a queue manager that meets deadlines when many LLMs share few GPUs."""


if __name__ == "__main__":  # `python -m benchmarks.compiled -m qlm.cli.main ...`
    main()
