"""`qlm compare`: compare policies in simulation."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qlm.cli.commands.options import SEED, SEED_MAX, errors_in_one_line
from qlm.cli.commands.simulation_options import PolicyType, check_folder

if TYPE_CHECKING:
    from qlm.simulator.policies import Policy

_LOAD = click.FloatRange(min=0, min_open=True)


class _Several(click.ParamType[tuple[Any, ...]]):
    """Values with commas between them, each of one type."""

    def __init__(self, each: click.ParamType[Any]) -> None:
        self._each = each
        self.name = each.name

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        values = tuple(self._each.convert(part, param, ctx) for part in parts)
        if len(set(values)) < len(values):
            self.fail(f"{value!r} names one of them twice; expected each once", param, ctx)
        return values


@click.command("compare")
@click.argument("scenarios", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="SCENARIO...")
@click.option(
    "--policy",
    "policies",
    type=_Several(PolicyType()),
    default="qlm,edf+rules,fcfs",
    show_default=True,
    help="Policies as of `qlm simulate`, with commas; the others are compared with the first.",
)
@click.option("--seeds", type=click.IntRange(1, 1000), default=3, show_default=True, help="Number of seeds.")
@click.option("--first-seed", type=SEED, default=1, show_default=True, help="First of them.")
@click.option(
    "--load",
    "loads",
    type=_Several(_LOAD),
    default="1",
    show_default=True,
    help="Factors on all arrival rates, with commas.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder for compare.csv: one row per simulation."
)
@click.option("--plots", is_flag=True, help="Also draw compare.png into the folder.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compare_command(
    scenarios: tuple[Path, ...],
    policies: "tuple[Policy, ...]",
    seeds: int,
    first_seed: int,
    loads: tuple[float, ...],
    out: Path | None,
    plots: bool,
    as_json: bool,
) -> None:
    """Simulate the same requests under several policies, and print one table.

    Each policy gets the same requests for each seed, so differences between policies are paired.
    docs/simulator.md explains the columns.
    """
    check_folder(plots=plots, out=out)
    if first_seed + seeds - 1 > SEED_MAX:
        raise click.BadParameter(f"{seeds} from {first_seed} on end beyond {SEED_MAX}.", param_hint="--seeds")
    # Imported here: simulator and tables take longer than the help.
    from qlm.cli.comparison.comparing import compare
    from qlm.cli.comparison.runs import Plan

    plan = Plan(
        scenarios=scenarios,
        policies=policies,
        loads=loads,
        seeds=range(first_seed, first_seed + seeds),
    )
    with errors_in_one_line():
        compare(plan, out, plots=plots, as_json=as_json)
