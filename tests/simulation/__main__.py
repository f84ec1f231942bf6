"""`python -m simulation`: run the whole system under the faults of many seeds, or repeat one seed."""

import fnmatch
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from simulation.campaign import COMMAND, Campaign, summaries
from simulation.faults.plan import KINDS
from simulation.records import SeedFile, Summary
from simulation.report import kinds_table, states_table
from simulation.trial import Trial, run_trial

_VIOLATIONS_MAX: Final = 5
"""Most violations printed for one seed."""


def _kinds(context: click.Context, parameter: click.Parameter, given: str | None) -> tuple[str, ...] | None:
    """Return the kinds that match one of the patterns of an option."""
    if given is None:
        return None
    patterns = [each.strip() for each in given.split(",")]
    for pattern in patterns:
        if not fnmatch.filter(KINDS, pattern):
            raise click.BadParameter(f"{pattern!r} matches no kind of fault; there are {', '.join(KINDS)}")
    return tuple(kind for kind in KINDS if any(fnmatch.fnmatch(kind, pattern) for pattern in patterns))


@click.command()
@click.option("--seed", type=click.IntRange(min=0), help="Run only this seed.")
@click.option("--seeds", type=click.IntRange(min=1), default=200, show_default=True, help="Number of seeds.")
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="First seed.")
@click.option("--kinds", callback=_kinds, help="Draw only these faults: names or patterns, with commas.")
@click.option("--state", type=click.Path(dir_okay=False, path_type=Path), help="Record finished seeds here.")
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=os.cpu_count() or 1,
    show_default="one per core",
    help="Number of seeds at once.",
)
@click.option("--trace", is_flag=True, help="Print every event of the one seed.")
def main(
    seed: int | None,
    seeds: int,
    first: int,
    kinds: tuple[str, ...] | None,
    state: Path | None,
    processes: int,
    trace: bool,
) -> None:
    """Run the whole system in virtual time under drawn faults, and check its guarantees.

    With --state, an interrupted run goes on where it was: call the command again.
    """
    if seed is not None:
        _run_one(seed, kinds, trace=trace)
        return
    campaign = Campaign(range(first, first + seeds), kinds, processes)
    with SeedFile.open(state, kinds) as file:
        for summary in summaries(campaign, file):
            for line in _lines(summary, kinds):
                click.echo(line)
        total = file.total
    click.echo(kinds_table(total))
    click.echo(states_table(total.coverage))
    click.echo(total.text())
    sys.exit(1 if total.failed else 0)


def _run_one(seed: int, kinds: tuple[str, ...] | None, *, trace: bool) -> None:
    trial = run_trial(seed, kinds=kinds)
    if trace:
        click.echo("\n".join(event_lines(trial)))
    click.echo(
        f"seed {seed}: {', '.join(trial.faults)}; {trial.requests} requests, {trial.simulated_s:.1f} s"
    )
    for violation in trial.violations:
        click.echo(f"  {violation}")
    sys.exit(1 if trial.violations else 0)


def _lines(summary: Summary, kinds: tuple[str, ...] | None) -> Iterator[str]:
    if not summary.violations:
        return
    only = f' --kinds "{",".join(kinds)}"' if kinds is not None else ""
    yield f"seed {summary.seed}: {len(summary.violations)} violations; replay with"
    yield f"  {COMMAND} --seed {summary.seed}{only} --trace"
    yield from (f"  {violation}" for violation in summary.violations[:_VIOLATIONS_MAX])


def event_lines(trial: Trial) -> Iterator[str]:
    """Yield one line per event of a trial."""
    for event in trial.events:
        fields = zip(event._fields[1:], event[1:], strict=True)
        values = " ".join(f"{name}={value}" for name, value in fields)
        yield f"{event.at_s:9.4f}  {type(event).__name__:16} {values}"


if __name__ == "__main__":
    main()
