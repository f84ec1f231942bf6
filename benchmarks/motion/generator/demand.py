"""Demand of drawn scenarios: popularity of models over time, arrivals, and lengths."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from benchmarks.motion.generator.chance import Rng, happens, log_uniform, pick

FLIPS: Final = 0.35
"""Share of scenarios in which the popularity of models changes during the run."""

BACKLOG: Final = 0.2
"""Share of scenarios in which one class of one model also comes all at once."""

ARRIVALS: Final = ((0.5, "poisson"), (0.3, "gamma"), (0.2, "on_off"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnLengths:
    """Log-normal lengths.

    Attributes:
        median: Median, tokens.
        sigma: Standard deviation of the natural logarithm.
    """

    median: float
    sigma: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnArrivals:
    """Arrival process.

    Attributes:
        process: `poisson`, `gamma` or `on_off`.
        cv: Of gamma, the coefficient of variation of the gaps.
        cycles: Of on and off, periods per phase.
        on_share: Of on and off, share of the time with requests.
    """

    process: str
    cv: float = 1.0
    cycles: int = 1
    on_share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Part of a run, with the popularity of models in it.

    Attributes:
        start: Its start, as a share of the run.
        end: Its end.
        shares: Share of the requests, by model.
    """

    start: float
    end: float
    shares: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDemand:
    """Requests for one model."""

    prompt: DrawnLengths
    output: DrawnLengths
    arrivals: DrawnArrivals


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Requests that come all at once.

    Attributes:
        model: Their model, by number.
        at: When, as a share of the run.
        share: Share of all requests.
    """

    model: int
    at: float
    share: float


def draw_backlog(rng: Rng, models: int) -> Backlog | None:
    """Draw a backlog, or none."""
    if not happens(rng, BACKLOG):
        return None
    return Backlog(model=int(rng.integers(models)), at=rng.uniform(0.0, 0.5), share=rng.uniform(0.05, 0.3))


def draw_phases(rng: Rng, models: int, twins: Sequence[int]) -> tuple[Phase, ...]:
    """Draw one phase, or two or three between which popularity passes to other models."""
    shares = _popularity(rng, models)
    number = 1 if models == 1 or not happens(rng, FLIPS) else int(rng.integers(2, 3, endpoint=True))
    edges = [0.0, *sorted(round(float(each), 2) for each in rng.uniform(0.2, 0.8, number - 1)), 1.0]
    phases = []
    for start, end in pairwise(edges):
        if end > start:
            phases.append(Phase(start=start, end=end, shares=_with_equal(shares, twins)))
        shares = rng.permutation(shares)
    return tuple(phases)


def draw_demands(rng: Rng, models: int, twins: Sequence[int]) -> tuple[ModelDemand, ...]:
    """Draw lengths and arrivals, by model; twins have those of the first."""
    styles, bursty = _length_style(rng), happens(rng, 0.5)
    drawn = [_demand(rng, styles, bursty=bursty) for _ in range(models)]
    return tuple(drawn[0] if number in twins else each for number, each in enumerate(drawn))


def _popularity(rng: Rng, models: int) -> np.ndarray:
    """Draw shares: flat, of a power law, or with one hot model; in random order."""
    ranks = np.arange(1, models + 1, dtype=np.float64)
    match pick(rng, ((0.25, "flat"), (0.45, "power"), (0.3, "hot"))):
        case "flat":
            shares = np.ones(models)
        case "power":
            shares = ranks ** -rng.uniform(0.5, 1.6)
        case _:
            hot = rng.uniform(0.5, 0.9)
            shares = np.where(ranks == 1, hot, (1 - hot) / max(1, models - 1))
    return rng.permutation(shares / shares.sum())


def _with_equal(shares: np.ndarray, twins: Sequence[int]) -> tuple[float, ...]:
    """Return the shares with those of twins evened out."""
    evened = shares.copy()
    if len(twins):
        evened[list(twins)] = shares[list(twins)].mean()
    return tuple(float(each) for each in evened)


def _length_style(rng: Rng) -> tuple[float, float]:
    """Draw the typical prompt and answer of a scenario, tokens."""
    return log_uniform(rng, 100, 2000), log_uniform(rng, 40, 400)


def _demand(rng: Rng, style: tuple[float, float], *, bursty: bool) -> ModelDemand:
    prompt, output = (typical * log_uniform(rng, 0.5, 2.0) for typical in style)
    return ModelDemand(
        prompt=DrawnLengths(median=prompt, sigma=rng.uniform(0.2, 1.1)),
        output=DrawnLengths(median=output, sigma=rng.uniform(0.2, 1.0)),
        arrivals=_arrivals(rng) if bursty else DrawnArrivals(process="poisson"),
    )


def _arrivals(rng: Rng) -> DrawnArrivals:
    return DrawnArrivals(
        process=pick(rng, ARRIVALS),
        cv=rng.uniform(1.5, 5.0),
        cycles=int(rng.integers(1, 6, endpoint=True)),
        on_share=rng.uniform(0.15, 0.6),
    )
