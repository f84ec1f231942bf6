"""`qlm evaluate fidelity`: judge a profile with a log of a real engine."""

from pathlib import Path
from typing import Any

import click


@click.command("fidelity")
@click.option("--log", "log_file", type=click.Path(path_type=Path), required=True, help="CSV or JSON lines.")
@click.option("--profile", "name", required=True, help="A file, or MODEL on GPUS x ACCELERATOR.")
@click.option(
    "--batched-tokens-max", type=click.IntRange(1), help="Tokens per iteration, instead of the profile's."
)
@click.option("--seqs-max", type=click.IntRange(1), help="Requests in the batch, instead of the profile's.")
@click.option(
    "--async-scheduling/--no-async-scheduling", default=None, help="Instead of what the profile says."
)
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="File for all figures."
)
def fidelity_command(**options: Any) -> None:
    """Replay the log of an engine with the engine model, and print the errors.

    A profile that was fitted to this log cannot be judged with it. docs/simulator.md describes the columns of
    the log and of the table.
    """
    # Imported here: the engine model takes longer than the help.
    from qlm.cli.commands.evaluate.replaying import judge_profile

    judge_profile(**options)
