"""`qlm evaluate fidelity`: judge a profile with a log of a real engine."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import orjson

from qlm.cli.commands.options import errors_in_one_line
from qlm.cli.inspect.console import console
from qlm.cli.profiling.judging import (
    fitted_lines,
    judgement,
    level_lines,
    level_table,
    prefix_line,
    profile_lines,
)
from qlm.cli.profiling.named import named_profile
from qlm.cli.profiling.request_log import fitted_to, read_request_log
from qlm.simulator.evaluation.fidelity import fidelity


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
def fidelity_command(log_file: Path, name: str, json_file: Path | None, **overrides: Any) -> None:
    """Replay the log of an engine with the engine model, and print the errors.

    A profile that was fitted to this log cannot be judged with it. docs/simulator.md describes the columns of
    the log and of the table.
    """
    with errors_in_one_line():
        given = {key: value for key, value in overrides.items() if value is not None}
        profile = replace(named_profile(name), **given)
        log = read_request_log(log_file)
        levels, fitted = fidelity(log, profile), fitted_to(profile, log)
        if json_file is not None:
            plain = judgement(log, profile, levels, fitted)
            json_file.write_bytes(orjson.dumps(plain, option=orjson.OPT_INDENT_2) + b"\n")
    for line in (*profile_lines(profile), *fitted_lines(log, fitted), prefix_line(levels)):
        click.echo(line)
    for level in levels:
        console().print(level_table(level), crop=False)
        for line in level_lines(level):
            click.echo(line)
    if json_file is not None:
        click.echo(f"written to {json_file}")
