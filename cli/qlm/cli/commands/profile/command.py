"""`qlm profile`: measure a live engine and write its profile."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from qlm.cli.profiling.settings import FACTS


def _asks_for_facts(command: Callable[..., None]) -> Callable[..., None]:
    for name, help_text in reversed(tuple(FACTS.items())):
        flag = "--" + name.replace("_", "-")
        command = click.option(flag, name, type=click.FloatRange(min=0, min_open=True), help=help_text)(
            command
        )
    return command


@click.command("profile")
@click.argument("url", required=False)
@click.option("--model", help="Model name at the engine.  [default: its only one]")
@click.option("--name", help="Model name in the profile.  [default: that of --model]")
@click.option("--accelerator", help="Kind of accelerator, such as A10; needed with URL.")
@click.option("--gpus", type=click.IntRange(1), default=1, show_default=True, help="GPUs the engine spans.")
@click.option(
    "--max-num-seqs",
    "seqs_max",
    type=click.IntRange(2),
    help="The engine's setting.  [default: what the engine says, else vLLM's default on the accelerator]",
)
@click.option(
    "--max-num-batched-tokens",
    "batched_tokens_max",
    type=click.IntRange(64),
    help="The engine's setting.  [default: what the engine says, else vLLM's default on the accelerator]",
)
@click.option(
    "--async-scheduling/--no-async-scheduling",
    default=None,
    help="The engine's setting.  [default: what the engine says, else on, but off on CPU, as in vLLM]",
)
@click.option("--api-key", envvar="QLM_ENGINE_API_KEY", help="API key of the engine (or QLM_ENGINE_API_KEY).")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write.  [default: NAME-ACCELERATOR.yaml]",
)
@click.option(
    "--from-log",
    "log_file",
    type=click.Path(path_type=Path),
    help="Fit to the log of an engine, a row per request, instead of measuring one.",
)
@click.option("--start", help="Profile to begin with: a file, or MODEL on GPUS x ACCELERATOR.")
@click.option("--force", is_flag=True, help="Overwrite that file.")
@click.option("--quick", is_flag=True, help="Measure few points.")
@click.option(
    "--repeats", type=click.IntRange(1), help="Measurements per point.  [default: 5, or 3 with --quick]"
)
@click.option("--swap", is_flag=True, help="Also measure sleep and wake (aborts running requests).")
@click.option(
    "--facts",
    "facts_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Profile to take unmeasurable facts from.  [default: the shipped one]",
)
@_asks_for_facts
def profile_command(**options: Any) -> None:
    """Measure the engine at URL, fit its speed, and write a profile.

    With --from-log the speed is fitted to a log instead; docs/profiles.md names its columns.

    The engine must serve no other client meanwhile. Facts that its API does not expose are taken from the
    flags, else from another profile of the same model and accelerator, else asked for.
    """
    # Imported here: client, fit and estimates take longer than the help.
    from qlm.cli.commands.profile.running import run

    run(options)
