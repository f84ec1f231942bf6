"""`python -m qlm.simulator.system`: try the whole system under the faults of many seeds, or of one again."""

import sys
import time
from collections import Counter
from collections.abc import Iterable
from typing import Final

import click

from qlm.simulator.system.report import coverage_table, story
from qlm.simulator.system.trial import Trial, run_trial

COMMAND: Final = "python -m qlm.simulator.system"
_SHOWN_MAX: Final = 5
"""Violations of one seed that are printed."""


@click.command()
@click.option("--seed", type=click.IntRange(min=0), help="Only this seed.")
@click.option("--seeds", type=click.IntRange(min=1), default=200, show_default=True, help="How many seeds.")
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="The first seed.")
@click.option("--trace", is_flag=True, help="Print what happened, event by event.")
def main(seed: int | None, seeds: int, first: int, trace: bool) -> None:
    """Run the whole system in virtual time under drawn faults, and check what must hold."""
    chosen = range(first, first + seeds) if seed is None else range(seed, seed + 1)
    began_s = time.process_time()
    failed, coverage, requests = 0, Counter[str](), 0
    for trial in _trials(chosen):
        coverage += trial.coverage
        requests += trial.requests
        failed += bool(trial.violations)
        if trace:
            click.echo("\n".join(story(trial)))
        _tell(trial)
    took_s = time.process_time() - began_s
    click.echo(coverage_table(coverage))
    click.echo(
        f"{len(chosen)} seeds, {requests} requests, {failed} seeds with violations; "
        f"{took_s:.1f} s of processor time, {took_s / len(chosen):.3f} s per seed"
    )
    sys.exit(1 if failed else 0)


def _trials(seeds: Iterable[int]) -> Iterable[Trial]:
    """Run trials, with a bar if somebody looks on."""
    with click.progressbar(seeds, label="seeds", file=sys.stderr) as bar:
        for seed in bar:
            yield run_trial(seed)


def _tell(trial: Trial) -> None:
    if not trial.violations:
        return
    click.echo(f"seed {trial.seed}: {len(trial.violations)} violations; replay with")
    click.echo(f"  {COMMAND} --seed {trial.seed} --trace")
    for violation in trial.violations[:_SHOWN_MAX]:
        click.echo(f"  {violation}")


if __name__ == "__main__":
    main()
