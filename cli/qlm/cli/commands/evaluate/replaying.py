"""Judging a profile with a log of a real engine, for `qlm evaluate fidelity`."""

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
from qlm.cli.scenario.output import write_whole
from qlm.simulator.evaluation.fidelity import fidelity


def judge_profile(log_file: Path, name: str, json_file: Path | None, **overrides: Any) -> None:
    """Replay a log by a profile, with other settings where `overrides` has some, and print the errors."""
    with errors_in_one_line():
        given = {key: value for key, value in overrides.items() if value is not None}
        profile = replace(named_profile(name), **given)
        log = read_request_log(log_file)
        levels, fitted = fidelity(log, profile), fitted_to(profile, log)
        if json_file is not None:
            plain = judgement(log, profile, levels, fitted)
            write_whole(json_file, orjson.dumps(plain, option=orjson.OPT_INDENT_2) + b"\n")
    for line in (*profile_lines(profile), *fitted_lines(log, fitted), prefix_line(levels)):
        click.echo(line)
    for level in levels:
        console().print(level_table(level), crop=False)
        for line in level_lines(level):
            click.echo(line)
    if json_file is not None:
        click.echo(f"written to {json_file}")
