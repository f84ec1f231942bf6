"""A figure of a paper: what is simulated, by which policies, and what the paper claims of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Final

from qlm.cli.figures.measures import Measures
from qlm.simulator.engine.host_cache import PROACTIVE, KvOffloading

SCENARIOS: Final = Path(__file__).parent / "scenarios"


@dataclass(frozen=True, slots=True)
class Arm:
    """A batch policy under one condition.

    Attributes:
        name: Name in tables.
        batching: The batch policy.
        host_kv_gib: Host memory for KV blocks; None for the scenario's.
        offloading: Rules of copying KV blocks there and back.
    """

    name: str
    batching: str
    host_kv_gib: float | None = None
    offloading: KvOffloading = PROACTIVE


@dataclass(frozen=True, slots=True)
class Row:
    """Measures of one arm at one point of the figure's axis, of one seed."""

    point: float
    arm: str
    seed: int
    measures: Measures


Rows = Sequence[Row]


def mean(rows: Rows, arm: str, column: str, point: float | None = None) -> float:
    """Return the mean of a column over the seeds; over all points if none is given."""
    chosen = [each for each in rows if each.arm == arm and point in (None, each.point)]
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
        at_once: Instead of loads, how many requests arrive, all of them at the start.
        requests: Only the first ones of the scenario; None for all.
        kv_tokens: Size of the KV cache, instead of the profile's.
        seqs_max: Batch slots, instead of the profile's.
        arms: Policies to compare; the first is the base of claims.
        shown: Columns of the table, of `Measures`, with their headers.
        drawn: Column of the picture.
        claims: What the paper says of it.
    """

    title: str
    source: str
    scenario: str
    loads: tuple[float, ...] = ()
    at_once: tuple[int, ...] = ()
    requests: int | None = None
    kv_tokens: int | None = None
    seqs_max: int | None = None
    arms: tuple[Arm, ...]
    shown: Mapping[str, str]
    drawn: str
    claims: tuple[Claim, ...]

    @property
    def axis(self) -> str | None:
        """Name of what the rows differ in, beside arm and seed; None for nothing."""
        if self.at_once:
            return "requests"
        return "load" if self.loads else None

    @property
    def points(self) -> tuple[float, ...]:
        """Points of the axis; a figure without one has a single point."""
        return self.at_once or self.loads or (1.0,)

    def up_to(self, requests: int | None) -> "Figure":
        """Return the figure without points of more requests at once; if all have more, with that one."""
        if requests is None or not self.at_once:
            return self
        counts = tuple(count for count in self.at_once if count <= requests)
        return replace(self, at_once=counts or (requests,))
