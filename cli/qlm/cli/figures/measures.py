"""Measures of a simulated streaming workload, by the four papers."""

from dataclasses import dataclass
from math import inf, nan

import numpy as np

from qlm.domain.slo import ReadingSlo
from qlm.domain.streaming.goodput import Streamed, latency_goodput, smooth_goodput
from qlm.domain.streaming.token_value import effective_tokens
from qlm.simulator.results import FloatArray, SimulationResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """Measures over all requests of a run; those without an answer count with 0.

    Those of readers (quality of experience, smooth goodput, effective tokens, idle time) leave out requests
    whose objective has no reader. Of no requests, a measure is 0.

    Attributes:
        met: Share of met objectives.
        latency_s: Mean latency of the answered requests, arrival to last token.
        met_per_latency_s: Met objectives per second of the latencies of all (annealing, equation 2: G).
        qoe: Mean quality of experience (Andes, equation 1).
        qoe_star: The same in the form that no late token raises.
        smooth_goodput: Tokens per second to users who are still there.
        effective_tokens_per_s: Tokens per second weighted by the buffer of their reader (TokenFlow).
        tokens_per_s: Output tokens per second, first arrival to last end.
        ttft_p50_s: Median time to the first token.
        ttft_p99_s: Its 99th percentile.
        idle_p99_s: 99th percentile of the idle time of readers.
        preemptions: Preemptions per request.
        longest_wait_s: Longest time to a first token.
        makespan_s: First arrival to last end.
    """

    met: float
    latency_s: float
    met_per_latency_s: float
    qoe: float
    qoe_star: float
    smooth_goodput: float
    effective_tokens_per_s: float
    tokens_per_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    idle_p99_s: float
    preemptions: float
    longest_wait_s: float
    makespan_s: float


def measured(result: SimulationResult, times_s: list[list[float]]) -> Measures:
    """Measure a run.

    Args:
        result: The run.
        times_s: Times of the tokens of each request, seconds from its arrival.
    """
    outcomes, workload = result.outcomes, result.workload
    paces = np.array([_pace(each.slo) for each in result.scenario.slo_classes])[workload.slo_class]
    readers = np.flatnonzero(np.isfinite(paces))
    answered = outcomes.tokens > 0
    latencies_s = (outcomes.ended_ns - workload.arrival_ns)[answered] / 1e9
    span_s = float(outcomes.ended_ns.max() - workload.arrival_ns.min()) / 1e9
    waits_s = (outcomes.first_token_ns - workload.arrival_ns)[answered] / 1e9
    streamed = zip(outcomes.tokens, np.nan_to_num(outcomes.idle_s, nan=inf), outcomes.met, strict=True)
    heard = [Streamed(int(tokens), float(idle_s), bool(met)) for tokens, idle_s, met in streamed]
    effective = sum(effective_tokens(times_s[each], float(paces[each])) for each in readers)
    return Measures(
        met=float(outcomes.met.mean()),
        latency_s=_mean(latencies_s),
        met_per_latency_s=latency_goodput(
            zip(latencies_s.tolist(), outcomes.met[answered].tolist(), strict=True)
        ),
        qoe=_mean(_andes(outcomes.qoe, outcomes.idle_s, outcomes.tokens / paces)[readers]),
        qoe_star=_mean(np.nan_to_num(outcomes.qoe)[readers]),
        smooth_goodput=smooth_goodput((heard[each] for each in readers), span_s),
        effective_tokens_per_s=effective / span_s,
        tokens_per_s=float(outcomes.tokens.sum()) / span_s,
        ttft_p50_s=_quantile(waits_s, 0.5),
        ttft_p99_s=_quantile(waits_s, 0.99),
        idle_p99_s=_quantile(outcomes.idle_s[~np.isnan(outcomes.idle_s)], 0.99),
        preemptions=float((outcomes.evictions + outcomes.engine_preemptions).mean()),
        longest_wait_s=_quantile(waits_s, 1.0),
        makespan_s=span_s,
    )


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if values.size else 0.0


def _quantile(values: FloatArray, share: float) -> float:
    return float(np.quantile(values, share)) if values.size else 0.0


def _pace(slo: object) -> float:
    return slo.tokens_per_s if isinstance(slo, ReadingSlo) else nan


def _andes(qoe_star: FloatArray, idle_s: FloatArray, reads_s: FloatArray) -> FloatArray:
    """Return equation 1 by QoE*: both have the mean lateness, and equation 1 also the last one."""
    with np.errstate(divide="ignore", invalid="ignore"):
        mean_late_s = reads_s / 2 * (1 / qoe_star - 1)
        return np.nan_to_num(1 - mean_late_s / (idle_s + reads_s / 2))
