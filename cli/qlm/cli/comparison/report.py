"""A comparison as a table, as CSV and as plain data."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields

from qlm.cli.comparison.runs import Figures, Run
from qlm.cli.comparison.statistics import interval, mean_or_none, spread
from qlm.cli.inspect.layout import Table
from qlm.cli.inspect.render import table


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A policy in one scenario at one load, over all seeds.

    Attributes:
        means: Means over the seeds that have a value; None if no seed has one.
        met_spread: Standard deviation of `met` between seeds; None with fewer than two values.
        difference: Mean difference of `met` to the first policy, seed by seed; None for that policy, and
            if no seed has a value of both.
        difference_95: Its 95 % interval; None with fewer than two differences.
    """

    scenario: str
    load: float
    policy: str
    seeds: int
    means: Figures
    met_spread: float | None
    difference: float | None
    difference_95: tuple[float, float] | None


def cells(runs: Sequence[Run]) -> Iterator[Cell]:
    """Yield the cells in the order of their first runs."""
    first = runs[0].policy
    met = {(each.scenario, each.load, each.policy, each.seed): each.figures.met for each in runs}
    for scenario, load, policy in dict.fromkeys((each.scenario, each.load, each.policy) for each in runs):
        of_cell = [
            each for each in runs if (each.scenario, each.load, each.policy) == (scenario, load, policy)
        ]
        pairs = [(each.figures.met, met[scenario, load, first, each.seed]) for each in of_cell]
        paired = [own - other for own, other in pairs if own is not None and other is not None]
        yield Cell(
            scenario=scenario,
            load=load,
            policy=policy,
            seeds=len(of_cell),
            means=Figures(**{name: mean_or_none(_values(of_cell, name)) for name in _NAMES}),
            met_spread=spread(_values(of_cell, "met")),
            difference=None if policy == first else mean_or_none(paired),
            difference_95=None if policy == first else interval(paired),
        )


def shown(found: Sequence[Cell]) -> Table:
    """Return the table of a comparison."""
    first, seeds = found[0].policy, found[0].seeds
    heads = ("scenario", "load>", "policy", "met, %>", "sd>", f"against {first}, points>", "worst class, %>")
    more = ("served/s>", "P99 first token, s>", "swaps>", "evictions>", "again, %>", "idle beside work, %>")
    rows = [
        (
            each.scenario,
            f"{each.load:g}",
            each.policy,
            _percent(each.means.met),
            _percent(each.met_spread),
            _difference(each),
            _percent(each.means.worst_class),
            _number(each.means.served_rps, 2),
            _number(each.means.p99_first_token_s, 1),
            _number(each.means.swaps, 0),
            _number(each.means.evictions, 0),
            _percent(each.means.again),
            _percent(each.means.idle),
        )
        for each in found
    ]
    plural = "" if seeds == 1 else "s"
    notes = [f"means over {seeds} seed{plural}, the same requests for each policy; [95 % interval]"]
    return table("comparison", (*heads, *more), rows, spare=[each.rstrip(">") for each in more], notes=notes)


def runs_csv(runs: Sequence[Run]) -> str:
    """Return all figures of all runs; equal seeds give equal bytes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["scenario", "load", "policy", "seed", *_NAMES])
    for each in runs:
        values = ("" if value is None else f"{value:.6g}" for value in asdict(each.figures).values())
        writer.writerow([each.scenario, f"{each.load:g}", each.policy, each.seed, *values])
    return text.getvalue()


def plain(found: Sequence[Cell]) -> list[dict[str, object]]:
    """Return the cells for JSON."""
    return [asdict(each) for each in found]


def _values(runs: Sequence[Run], name: str) -> list[float]:
    values = (getattr(each.figures, name) for each in runs)
    return [value for value in values if value is not None]


def _percent(share: float | None) -> str | None:
    return None if share is None else _number(100 * share, 1)


def _number(value: float | None, digits: int) -> str | None:
    return None if value is None else f"{value:.{digits}f}"


def _difference(cell: Cell) -> str | None:
    if cell.difference is None:
        return None
    text = f"{100 * cell.difference:+.1f}"
    if cell.difference_95 is None:
        return text
    low, high = cell.difference_95
    return f"{text} [{100 * low:+.1f}, {100 * high:+.1f}]"


_NAMES = tuple(each.name for each in fields(Figures))
