"""Comparison of runs of the same requests; pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from benchmarks.fidelity_client import Answer

LATENCY_ERROR_MAX = 0.10
SELF_ERROR_FACTOR = 1.5
P95_ERROR_MAX = 0.15
THROUGHPUT_ERROR_MAX = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Difference of a run from another of the same requests, as shares of the other.

    Attributes:
        each: Mean absolute percentage error of end-to-end latency, request by request.
        bias: Mean of the signed error of end-to-end latency, in which errors cancel out.
        first_token_bias: Error of the mean TTFT: queueing and prompts.
        pace_bias: Error of the mean TPOT: decoding.
        p95: Error of the P95 of end-to-end latency.
        throughput: Error of the tokens per second of the steady part; None without one.
    """

    each: float
    bias: float
    first_token_bias: float
    pace_bias: float
    p95: float
    throughput: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Comparison at one load in one round: some runs of the real engine, and one of the emulated engine.

    Attributes:
        model: Differences of the emulated run from each real run.
        own: Differences of each real run from each earlier one: the engine's own repeatability.
        quantiles_s: P50, P95, P99 of end-to-end latency: of the real runs, then of the emulated one.
        tokens_per_s: Throughput over the steady part, in the same order; None for a run without one.
    """

    model: tuple[Difference, ...]
    own: tuple[Difference, ...]
    quantiles_s: tuple[tuple[float, ...], ...]
    tokens_per_s: tuple[float | None, ...]


def compare(real: Sequence[Sequence[Answer]], emulated: Sequence[Answer], *, places: int) -> Load:
    """Compare runs of the same requests, in the same order.

    Args:
        real: Runs of the real engine, two or more, in order of time.
        emulated: Run of the emulated engine.
        places: Batch slots.
    """
    runs = (*real, emulated)
    return Load(
        model=tuple(difference(one, emulated, places=places) for one in real),
        own=tuple(difference(one, later, places=places) for one, later in combinations(real, 2)),
        quantiles_s=tuple(tuple(np.quantile(_latencies(run), (0.5, 0.95, 0.99)).tolist()) for run in runs),
        tokens_per_s=tuple(steady_tokens_per_s(run, places) for run in runs),
    )


def difference(of: Sequence[Answer], other: Sequence[Answer], *, places: int) -> Difference:
    """Return how `other` differs from `of`, both of the same requests in the same order."""
    bias = _latencies(other) / _latencies(of) - 1
    paces = [steady_tokens_per_s(run, places) for run in (of, other)]
    return Difference(
        each=float(np.abs(bias).mean()),
        bias=float(bias.mean()),
        first_token_bias=_first_s(other) / _first_s(of) - 1,
        pace_bias=_pace_s(other) / _pace_s(of) - 1,
        p95=float(np.quantile(_latencies(other), 0.95) / np.quantile(_latencies(of), 0.95)) - 1,
        throughput=paces[1] / paces[0] - 1 if paces[0] and paces[1] else None,
    )


def _latencies(run: Sequence[Answer]) -> npt.NDArray[np.float64]:
    return np.array([answer.latency_s for answer in run])


def _first_s(answers: Sequence[Answer]) -> float:
    return statistics.fmean(answer.token_s[0] - answer.due_s for answer in answers)


def _pace_s(answers: Sequence[Answer]) -> float:
    tokens = sum(len(answer.token_s) - 1 for answer in answers)
    return sum(answer.token_s[-1] - answer.token_s[0] for answer in answers) / tokens


def steady_part(answers: Sequence[Answer], places: int) -> tuple[float, float] | None:
    """Find the longest time during which more requests were unfinished than there are batch slots.

    Every request that ends is then replaced by another, so the batch is full. The times in which the first
    batch fills and the last one empties are excluded.

    Args:
        answers: Answers of one run.
        places: Batch slots.

    Returns:
        Start and end in seconds; None if there never were that many.
    """
    changes = sorted(
        [(answer.sent_s, 1) for answer in answers] + [(answer.token_s[-1], -1) for answer in answers]
    )
    longest, begun_s, under_way = (0.0, 0.0), None, 0
    for at_s, change in changes:
        under_way += change
        if under_way > places:
            begun_s = at_s if begun_s is None else begun_s
        elif begun_s is not None:
            longest = max(longest, (begun_s, at_s), key=lambda part: part[1] - part[0])
            begun_s = None
    return longest if longest[1] > longest[0] else None


def steady_tokens_per_s(answers: Sequence[Answer], places: int) -> float | None:
    """Return output tokens per second over the steady part; None without one."""
    part = steady_part(answers, places)
    if part is None:
        return None
    start_s, end_s = part
    tokens = sum(start_s < at_s <= end_s for answer in answers for at_s in answer.token_s)
    return tokens / (end_s - start_s)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Criterion with its value and its bound, as shares.

    Attributes:
        own: The same figure for two runs of the real engine; None where that is not measured.
    """

    name: str
    value: float
    bound: float
    own: float | None = None

    @property
    def passed(self) -> bool:
        """True if the value is within the bound."""
        return abs(self.value) <= self.bound


def judge(name: str, rounds: Sequence[Load], *, saturated: bool) -> list[Verdict]:
    """Check the medians over the comparisons of one load: of the emulated run with each real one, per round.

    The engine's own figures are the medians over all pairs of its runs, within a round too.

    Args:
        name: Name of the load.
        rounds: At least one.
        saturated: Also check the throughput.
    """
    model = [one for each in rounds for one in each.model]
    own = [one for each in rounds for one in each.own]
    each, own_each = (_median([one.each for one in of]) for of in (model, own))
    p95, own_p95 = (_median([one.p95 for one in of]) for of in (model, own))
    bound = max(LATENCY_ERROR_MAX, SELF_ERROR_FACTOR * own_each)
    verdicts = [
        Verdict(f"{name}: error of latency", each, bound, own_each),
        Verdict(f"{name}: error of P95", p95, P95_ERROR_MAX, own_p95),
    ]
    if saturated:
        pace, own_pace = (_median([one.throughput for one in of]) for of in (model, own))
        verdicts.append(Verdict(f"{name}: error of tokens/s", pace, THROUGHPUT_ERROR_MAX, own_pace))
    return verdicts


def _median(values: Sequence[float | None]) -> float:
    """Return the median of the absolute values; what was not measured counts as infinite."""
    return statistics.median(float("inf") if value is None else abs(value) for value in values)
