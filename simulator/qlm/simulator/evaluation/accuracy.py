"""Accuracy of forecasts: errors, explained variance, coverage and width of intervals."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from qlm.simulator.cluster.event_queue import EPOCH_NS
from qlm.simulator.evaluation.forecasts import GroupForecast, Interval, RequestForecast
from qlm.simulator.report import ANSWERED
from qlm.simulator.results import NEVER, SimulationResult

FloatArray = npt.NDArray[np.float64]

TIMES: Final = ("wait", "first_token", "completion")
"""Forecast times of a request."""

CENTRAL: Final = (0.05, 0.95)
"""Quantiles of the oracle's residuals; their distance is the width that its interval needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Forecast and actual values of one time, seconds; shape (n,) each.

    Attributes:
        predicted: Means.
        actual: Outcomes.
        low: Lower ends of the 90 % intervals.
        high: Upper ends.
        oracle: Forecasts with known lengths; NaN where there is none.
    """

    predicted: FloatArray
    actual: FloatArray
    low: FloatArray
    high: FloatArray
    oracle: FloatArray

    def __len__(self) -> int:
        return len(self.actual)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Accuracy of the forecasts of one time.

    Attributes:
        count: Number of pairs.
        actual_mean_s: Mean outcome.
        error_mean_s: Mean absolute error.
        bias_s: Mean of prediction minus outcome.
        error_share: Mean absolute error divided by the mean outcome.
        r2: Share of the outcomes' variance that the forecasts explain (1 - residual / total).
        r2_linear: Squared correlation: `r2` after the best linear map.
        coverage: Share of outcomes within the 90 % interval.
        width_s: Mean width of that interval.
        oracle_width_s: Width of the central 90 % of the oracle's residuals.
    """

    count: int
    actual_mean_s: float
    error_mean_s: float
    bias_s: float
    error_share: float
    r2: float
    r2_linear: float
    coverage: float
    width_s: float
    oracle_width_s: float


def accuracy(pairs: Pairs) -> Accuracy:
    """Compute the accuracy of forecasts; NaN where there are too few pairs."""
    residual = pairs.predicted - pairs.actual
    known = ~np.isnan(pairs.oracle)
    oracle = (pairs.oracle - pairs.actual)[known]
    total = float(np.sum((pairs.actual - pairs.actual.mean()) ** 2)) if len(pairs) else 0.0
    low, high = np.quantile(oracle, CENTRAL) if len(oracle) else (np.nan, np.nan)
    spread = len(pairs) > 1 and total > 0 and float(np.ptp(pairs.predicted)) > 0
    inside = (pairs.actual >= pairs.low) & (pairs.actual <= pairs.high)
    return Accuracy(
        count=len(pairs),
        actual_mean_s=_mean(pairs.actual),
        error_mean_s=_mean(np.abs(residual)),
        bias_s=_mean(residual),
        error_share=_mean(np.abs(residual)) / max(_mean(pairs.actual), 1e-9) if len(pairs) else np.nan,
        r2=1 - float(np.sum(residual**2)) / total if total > 0 else np.nan,
        r2_linear=float(np.corrcoef(pairs.predicted, pairs.actual)[0, 1] ** 2) if spread else np.nan,
        coverage=_mean(inside.astype(np.float64)),
        width_s=_mean(pairs.high - pairs.low),
        oracle_width_s=float(high - low),
    )


def request_pairs(result: SimulationResult, forecasts: Iterable[RequestForecast], time: str) -> Pairs:
    """Pair forecasts of one of `TIMES` with outcomes; requests without an answer are skipped."""
    rows = [
        each
        for each in forecasts
        if result.outcomes.outcome[each.number] in ANSWERED and each.started_ns is not None
    ]
    intervals: Sequence[Interval] = [getattr(each, time) for each in rows]
    return Pairs(
        predicted=_array(each.mean for each in intervals),
        actual=_array(_actual_s(result, each, time) for each in rows),
        low=_array(each.low for each in intervals),
        high=_array(each.high for each in intervals),
        oracle=_array(_oracle_s(each, time) for each in rows),
    )


def group_pairs(result: SimulationResult, groups: Iterable[GroupForecast]) -> Pairs:
    """Pair forecasts of groups with outcomes; groups that grew or shrank later are skipped."""
    ended_ns = result.outcomes.ended_ns
    rows = [
        each
        for each in groups
        if len(each.members) == each.count and all(ended_ns[number] != NEVER for number in each.members)
    ]
    last_ns = [max(int(ended_ns[number]) for number in each.members) + EPOCH_NS for each in rows]
    return Pairs(
        predicted=_array(each.completion.mean for each in rows),
        actual=_array((end - each.at_ns) / 1e9 for each, end in zip(rows, last_ns, strict=True)),
        low=_array(each.completion.low for each in rows),
        high=_array(each.completion.high for each in rows),
        oracle=np.full(len(rows), np.nan),
    )


def by_class(
    result: SimulationResult, forecasts: Mapping[int, RequestForecast], *, queued_only: bool = False
) -> dict[str, list[RequestForecast]]:
    """Group forecasts by SLO class; with `queued_only`, without requests that found a free batch slot."""
    classes: dict[str, list[RequestForecast]] = {}
    for number, each in sorted(forecasts.items()):
        if each.oracle.queued or not queued_only:
            name = result.scenario.slo_classes[int(result.workload.slo_class[number])].name
            classes.setdefault(name, []).append(each)
    return classes


def _actual_s(result: SimulationResult, row: RequestForecast, time: str) -> float:
    outcomes = result.outcomes
    if time == "wait":
        at_ns = row.started_ns if row.started_ns is not None else row.at_ns
    else:
        column = outcomes.first_token_ns if time == "first_token" else outcomes.ended_ns
        at_ns = int(column[row.number]) + EPOCH_NS
    return (at_ns - row.at_ns) / 1e9


def _oracle_s(row: RequestForecast, time: str) -> float:
    return {"wait": row.oracle.wait_s, "completion": row.oracle.completion_s}.get(time, np.nan)


def _array(values: Iterable[float]) -> FloatArray:
    return np.array(list(values), dtype=np.float64)


def _mean(values: npt.NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else float("nan")
