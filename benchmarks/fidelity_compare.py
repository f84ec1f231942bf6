"""Comparison of runs of the same requests; pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.fidelity_client import Answer

LATENCY_ERROR_MAX = 0.10
SELF_ERROR_FACTOR = 1.5
P95_ERROR_MAX = 0.15
THROUGHPUT_ERROR_MAX = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Comparison at one load in one round: two runs of the real engine, and one of the emulated engine.

    Attributes:
        latency_error: Mean absolute percentage error of end-to-end latency, emulated against real, request
            by request, as a share of the first real run.
        self_error: Same error of the second real run against the first.
        latency_bias: Mean of (emulated - real) / real, in which errors cancel out.
        first_token_bias: Bias of the mean TTFT: queueing and prompts.
        pace_bias: Bias of the mean TPOT: decoding.
        quantiles_s: P50, P95, P99 of end-to-end latency: real, again, emulated.
        p95_error: (emulated - real) / real of the P95.
        tokens_per_s: Throughput over the steady part: real, again, emulated; None for a run without one.
        throughput_error: (emulated - real) / real of the throughput.
    """

    latency_error: float
    self_error: float
    latency_bias: float
    first_token_bias: float
    pace_bias: float
    quantiles_s: tuple[tuple[float, ...], ...]
    p95_error: float
    tokens_per_s: tuple[float | None, ...]
    throughput_error: float | None


def compare(
    real: Sequence[Answer], again: Sequence[Answer], emulated: Sequence[Answer], *, places: int
) -> Load:
    """Compare three runs of the same requests, in the same order.

    Args:
        real: First run of the real engine.
        again: Second run of the real engine.
        emulated: Run of the emulated engine.
        places: Batch slots.
    """
    runs = (real, again, emulated)
    latencies = [np.array([answer.latency_s for answer in run]) for run in runs]
    quantiles = [tuple(np.quantile(one, (0.5, 0.95, 0.99)).tolist()) for one in latencies]
    paces = tuple(steady_tokens_per_s(run, places) for run in runs)
    bias = latencies[2] / latencies[0] - 1
    return Load(
        latency_error=float(np.abs(bias).mean()),
        self_error=float(np.abs(latencies[1] / latencies[0] - 1).mean()),
        latency_bias=float(bias.mean()),
        first_token_bias=_first_s(emulated) / _first_s(real) - 1,
        pace_bias=_pace_s(emulated) / _pace_s(real) - 1,
        quantiles_s=tuple(quantiles),
        p95_error=quantiles[2][1] / quantiles[0][1] - 1,
        tokens_per_s=paces,
        throughput_error=paces[2] / paces[0] - 1 if paces[0] and paces[2] else None,
    )


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
    """Criterion with its value and its bound, as shares."""

    name: str
    value: float
    bound: float

    @property
    def passed(self) -> bool:
        """True if the value is within the bound."""
        return abs(self.value) <= self.bound


def judge(name: str, rounds: Sequence[Load], *, saturated: bool) -> list[Verdict]:
    """Check the medians over the rounds of one load.

    Args:
        name: Name of the load.
        rounds: At least one.
        saturated: Also check the throughput.
    """
    self_error = statistics.median(one.self_error for one in rounds)
    verdicts = [
        Verdict(
            f"{name}: error of latency",
            statistics.median(one.latency_error for one in rounds),
            max(LATENCY_ERROR_MAX, SELF_ERROR_FACTOR * self_error),
        ),
        Verdict(
            f"{name}: error of P95",
            statistics.median(abs(one.p95_error) for one in rounds),
            P95_ERROR_MAX,
        ),
    ]
    if saturated:
        errors = [
            float("inf") if one.throughput_error is None else abs(one.throughput_error) for one in rounds
        ]
        verdicts.append(
            Verdict(f"{name}: error of tokens/s", statistics.median(errors), THROUGHPUT_ERROR_MAX)
        )
    return verdicts
