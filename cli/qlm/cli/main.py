"""The command `qlm`."""

import click

from qlm.cli.commands import evaluate, inspect, plan, profile, run, simulate, steer


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
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
