"""All that a controller has learned, as one value that is stored and read again."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from qlm.controller.core.estimating.arrivals import Arrivals, is_recent
from qlm.controller.core.estimating.state import EstimatorState
from qlm.controller.core.expected.log import NOTHING_FORECAST, ForecastLog
from qlm.controller.core.history.classes import HALF_LIFE_S, ClassRecord, aged_weight, latest, limited
from qlm.controller.core.history.speeds import Speeds, read_speeds
from qlm.domain.group import RequestClass
from qlm.domain.length_histogram import NO_LENGTHS


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class History:
    """Learned figures of classes and instances.

    Attributes:
        at_ns: Time at which it was written, nanoseconds since the epoch.
        classes: Counts of the classes.
        arrivals: Arrival statistics of those of them that came lately.
        speeds: Speed corrections of the instances.
        forecasts: Errors of forecasts.
    """

    at_ns: int
    classes: Mapping[RequestClass, ClassRecord] = field(default_factory=dict)
    arrivals: Mapping[RequestClass, Arrivals] = field(default_factory=dict)
    speeds: Speeds = field(default_factory=dict)
    forecasts: ForecastLog = NOTHING_FORECAST


RATES_MAX: Final = 64
"""Largest number of classes whose rates are recalled: the times of each are computed in the first turn."""


def remembered(state: EstimatorState, now_ns: int) -> History:
    """Return what an estimator has learned."""
    statuses = [known.since for known in state.instances.values()]
    corrections = {id: known.corrections for id, known in state.instances.items()}
    return History(
        at_ns=now_ns,
        classes=state.records,
        arrivals={cls: known for cls, known in state.arrivals.items() if cls in state.records},
        speeds=read_speeds(statuses, corrections, now_ns, state.speeds),
        forecasts=state.forecasts.learned(),
    )


def recalled(history: History, now_ns: int) -> EstimatorState:
    """Return the state of an estimator that begins with a history.

    Answers count less the older they are, and at most as `FORMER_ANSWERS_MAX`. Rates count for an hour.
    """
    recent = [
        (cls, known)
        for cls, known in history.arrivals.items()
        if cls in history.classes and is_recent(known, now_ns)
    ]
    recent.sort(key=lambda item: item[1].present_ns)
    return EstimatorState(
        records=latest({cls: _recalled(each, now_ns) for cls, each in history.classes.items()}),
        arrivals=dict(recent[-RATES_MAX:]),
        speeds={key: each.aged(now_ns) for key, each in history.speeds.items()},
        forecasts=_forecasts(history, now_ns),
    )


def with_forecasts_of(state: EstimatorState, history: History, now_ns: int) -> EstimatorState:
    """Return a state with the errors of forecasts of a history: only who leads makes any, and sees them."""
    return replace(state, forecasts=_forecasts(history, now_ns))


def _forecasts(history: History, now_ns: int) -> ForecastLog:
    return history.forecasts.learned(0.5 ** (max(0, now_ns - history.at_ns) / 1e9 / HALF_LIFE_S))


def _recalled(record: ClassRecord, now_ns: int) -> ClassRecord:
    age_s = (now_ns - record.at_ns) / 1e9
    counts = limited(record.counts, aged_weight(age_s))
    return replace(record, lengths=NO_LENGTHS, former=counts, recalled=True)
