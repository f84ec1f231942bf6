"""`python -m simulation`: run the whole system under the faults of many seeds, or repeat one seed."""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import click

from simulation.trial import Trial, run_trial

COMMAND: Final = "python -m simulation"
_VIOLATIONS_MAX: Final = 5
"""Most violations printed for one seed."""
_COLUMN: Final = 50
_COLUMNS: Final = 2


@click.command()
@click.option("--seed", type=click.IntRange(min=0), help="Run only this seed.")
@click.option("--seeds", type=click.IntRange(min=1), default=200, show_default=True, help="Number of seeds.")
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="First seed.")
@click.option("--trace", is_flag=True, help="Print every event.")
def main(seed: int | None, seeds: int, first: int, trace: bool) -> None:
    """Run the whole system in virtual time under drawn faults, and check its guarantees."""
    chosen = range(first, first + seeds) if seed is None else range(seed, seed + 1)
    began_s = time.process_time()
    failed, coverage, requests = 0, Counter[str](), 0
    for trial in _trials(chosen):
        coverage += trial.coverage
        requests += trial.requests
        failed += bool(trial.violations)
        if trace:
            click.echo("\n".join(event_lines(trial)))
        _print_violations(trial)
    took_s = time.process_time() - began_s
    click.echo(coverage_table(coverage))
    click.echo(
        f"{len(chosen)} seeds, {requests} requests, {failed} seeds with violations; "
        f"{took_s:.1f} s of processor time, {took_s / len(chosen):.3f} s per seed"
    )
    sys.exit(1 if failed else 0)


def _trials(seeds: Iterable[int]) -> Iterable[Trial]:
    with click.progressbar(seeds, label="seeds", file=sys.stderr) as bar:
        for seed in bar:
            yield run_trial(seed)


def _print_violations(trial: Trial) -> None:
    if not trial.violations:
        return
    click.echo(f"seed {trial.seed}: {len(trial.violations)} violations; replay with")
    click.echo(f"  {COMMAND} --seed {trial.seed} --trace")
    for violation in trial.violations[:_VIOLATIONS_MAX]:
        click.echo(f"  {violation}")


def coverage_table(coverage: Counter[str]) -> str:
    """Format the occurrences of each fault and state as a table."""
    lines = ["faults and states reached:"]
    entries = [f"{what:{_COLUMN - 9}.{_COLUMN - 9}} {count:7}" for what, count in sorted(coverage.items())]
    rows = -(-len(entries) // _COLUMNS)
    for row in range(rows):
        lines.append("  " + "  ".join(entries[row::rows]))
    return "\n".join(lines)


def event_lines(trial: Trial) -> Iterator[str]:
    """Yield one line per event of a trial."""
    for event in trial.events:
        fields = zip(event._fields[1:], event[1:], strict=True)
        values = " ".join(f"{name}={value}" for name, value in fields)
        yield f"{event.at_s:9.4f}  {type(event).__name__:16} {values}"


if __name__ == "__main__":
    main()
