"""Figures of `benchmarks.rct` for one simulation: forecasts, outcomes and the irreducible error."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.rct_points import WARM_UP, Point, capacity_rps, class_mean, fitted, scenario
from qlm.rct_estimator.length_predictive import FloatArray
from qlm.rct_estimator.throughput import steady_state
from qlm.simulator.evaluation.accuracy import (
    TIMES,
    Accuracy,
    Pairs,
    accuracy,
    by_class,
    group_pairs,
    request_pairs,
)
from qlm.simulator.evaluation.forecasts import ForecastRecorder
from qlm.simulator.policies import POLICIES
from qlm.simulator.results import NEVER, SimulationResult
from qlm.simulator.scenario import IntArray
from qlm.simulator.simulation import simulate
from qlm.simulator.workload.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Accuracy of one time of one class of a point.

    Attributes:
        point: The simulation.
        slo_class: Name of the class; "all" for groups.
        time: Forecast time: wait, first_token, completion or group.
        accuracy: Accuracy of the forecasts.
        ceiling: Expected R² of a forecast that knows the speed and as many answers as the estimator, but no
            length in advance; NaN except in bursts.
    """

    point: Point
    slo_class: str
    time: str
    accuracy: Accuracy
    ceiling: float

    def plain(self) -> dict[str, Any]:
        """Convert to plain data."""
        return {
            "instance": self.point.name,
            "traces": list(self.point.traces),
            "load": self.point.load,
            "policy": self.point.policy,
            "slo_class": self.slo_class,
            "time": self.time,
            "r2_ceiling": self.ceiling,
            **asdict(self.accuracy),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Figures of one simulation.

    Attributes:
        rows: Accuracy by class and time.
        predicted_rps: Requests per second of the estimator's steady state with the lengths of the traces.
        measured_rps: Ends per second while requests waited; NaN if hardly any did.
        wall_s: Wall time.
    """

    rows: list[Row]
    predicted_rps: float
    measured_rps: float
    wall_s: float


def judged(point: Point, traces: Mapping[str, Trace], seed: int) -> Run:
    """Simulate a point, and evaluate the forecasts after its warm-up."""
    subject = scenario(point, traces)
    recorder = ForecastRecorder(point.every)
    result = simulate(subject, POLICIES[point.policy], seed, stopwatch_s=time.perf_counter, observer=recorder)
    judged_rows = range(point.warm_up, point.warm_up + point.requests)
    kept = {number: each for number, each in recorder.requests.items() if number in judged_rows}
    rows = []
    for name, forecasts in by_class(result, kept, queued_only=point.load is None).items():
        pairs = {what: request_pairs(result, forecasts, what) for what in TIMES}
        for what in TIMES:
            ceiling = _ceiling(result, point, pairs, what) if point.load is None else np.nan
            rows.append(_row(point, name, what, pairs[what], ceiling))
    whole = [g for g in recorder.groups.values() if g.members and set(g.members) <= set(judged_rows)]
    rows.append(_row(point, "all", "group", group_pairs(result, whole), np.nan))
    lengths = [fitted(traces[name], subject.models[0].context_tokens) for name in point.traces]
    return Run(
        rows=rows,
        predicted_rps=capacity_rps(point.profile, lengths),
        measured_rps=_measured_rps(result, point),
        wall_s=result.wall_s,
    )


def _row(point: Point, name: str, what: str, pairs: Pairs, ceiling: float) -> Row:
    return Row(point=point, slo_class=name, time=what, accuracy=accuracy(pairs), ceiling=ceiling)


def _ceiling(result: SimulationResult, point: Point, pairs: Mapping[str, Pairs], what: str) -> float:
    """Compute R² without the part of the variance that unknown lengths cause.

    The n-th request beyond the first batch waits for n ends, each with mean x and variance c² x². Unknown are
    n c² x² for the n, and (n c x)² / N for the mean, known from N answers. The variance of its own time in
    the batch is that of the observed times.
    """
    wait, actual = pairs["wait"].actual, pairs[what].actual
    work = result.workload
    rows = slice(point.warm_up, None)
    tokens = np.minimum(work.output_tokens[rows], work.max_tokens[rows]).astype(np.float64)
    cost = tokens * (1 + _kv_cost_shares(point, work.prompt_tokens[rows], tokens))
    cv2 = float(cost.var() / cost.mean() ** 2)
    each_s = float(np.ptp(wait)) / max(1, point.every * (len(wait) - 1))
    unknown = cv2 * float(np.mean(wait)) * each_s + cv2 * float(np.mean(wait**2)) / WARM_UP
    if what != "wait":
        unknown += float(np.var(actual - wait))
    return 1 - unknown / float(actual.var()) if actual.var() else np.nan


def _kv_cost_shares(point: Point, prompts: IntArray, tokens: FloatArray) -> FloatArray:
    """Return each request's cost of a token by KV cache relative to its other cost; dimensionless."""
    kv_tokens = prompts + tokens / 2
    mean = class_mean(prompts.astype(np.float64), tokens)
    share = steady_state(point.profile, mean).kv_share
    return np.asarray(share / max(1e-9, 1 - share) * kv_tokens * tokens.sum() / (kv_tokens * tokens).sum())


def _measured_rps(result: SimulationResult, point: Point) -> float:
    """Return ends per second over the middle half of the ends with a full batch."""
    if point.load is not None and point.load <= 1:
        return float("nan")
    ended_ns = np.sort(result.outcomes.ended_ns[point.warm_up :])
    ended_ns = ended_ns[ended_ns != NEVER]
    if point.load is not None:
        ended_ns = ended_ns[ended_ns < result.workload.arrival_ns[-1]]
    first, last = len(ended_ns) // 4, 3 * len(ended_ns) // 4
    return float((last - first) * 1e9 / (ended_ns[last] - ended_ns[first]))
