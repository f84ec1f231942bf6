"""A figure of a paper: what is simulated, by which policies, and what the paper claims of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Final

from qlm.cli.figures.measures import Measures

SCENARIOS: Final = Path(__file__).parent / "scenarios"


@dataclass(frozen=True, slots=True)
class Arm:
    """A batch policy under one condition.

    Attributes:
        name: Name in tables.
        batching: The batch policy.
        host_kv_gib: Host memory for KV blocks; None for the scenario's.
    """

    name: str
    batching: str
    host_kv_gib: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """Measures of one arm at one load, of one seed."""

    load: float
    arm: str
    seed: int
    measures: Measures


Rows = Sequence[Row]


def mean(rows: Rows, arm: str, column: str, load: float | None = None) -> float:
    """Return the mean of a column over the seeds; over all loads if none is given."""
    chosen = [each for each in rows if each.arm == arm and load in (None, each.load)]
    return fmean(float(getattr(each.measures, column)) for each in chosen)


@dataclass(frozen=True, slots=True)
class Claim:
    """What a paper says, and the same figure here.

    Attributes:
        text: The claim.
        paper: Its figure, as the paper prints it.
        ours: Computes the figure from the rows.
    """

    text: str
    paper: str
    ours: Callable[[Rows], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What `qlm evaluate streaming NAME` runs.

    Attributes:
        title: What it shows.
        source: Paper and place in it.
        scenario: File name in `SCENARIOS`.
        loads: Requests per second over what the first arm serves while its batch is full; empty for the
            arrivals of the scenario as they are.
        requests: Only the first ones of the scenario; None for all.
        kv_tokens: Size of the KV cache, instead of the profile's.
        arms: Policies to compare; the first is the base of claims.
        shown: Columns of the table, of `Measures`, with their headers.
        drawn: Column of the picture.
        claims: What the paper says of it.
    """

    title: str
    source: str
    scenario: str
    loads: tuple[float, ...] = ()
    requests: int | None = None
    kv_tokens: int | None = None
    arms: tuple[Arm, ...]
    shown: Mapping[str, str]
    drawn: str
    claims: tuple[Claim, ...]
