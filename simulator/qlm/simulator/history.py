"""Knowledge of the controller at the start of a simulation: from the traffic before, if there is any."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from qlm.controller.core.estimating.arrivals import READ_EVERY_S, Arrivals
from qlm.controller.core.history.classes import ClassRecord
from qlm.controller.core.history.history import History
from qlm.domain.group import RequestClass
from qlm.domain.outcome import Outcome
from qlm.simulator.scenario import IntArray, PastTraffic, Workload
from qlm.store.core.length_stats import LengthStats

_WINDOW: Final = 2_000
"""Answers per window of the length counts, as in the stores."""


@dataclass(frozen=True, slots=True)
class _Past:
    """Requests of one class, by arrival, seconds from the begin of the history."""

    arrival_s: Sequence[float]
    prompt_tokens: IntArray
    output_tokens: IntArray
    max_tokens: IntArray


def past_history(
    past: PastTraffic, workload: Workload, classify: Callable[[int, int], RequestClass], start_ns: int
) -> History:
    """Return what a controller had learned that saw the whole past, each request answered at once.

    Args:
        past: The past.
        workload: Its requests.
        classify: Returns the class of a model and an SLO class, both by index.
        start_ns: Start of the simulation, nanoseconds since the epoch.
    """
    end_ns = start_ns - round(past.age_s * 1e9)
    span_s = float(workload.arrival_ns[-1]) / 1e9
    rows: dict[RequestClass, list[int]] = {}
    for row, (model, slo_class) in enumerate(
        zip(workload.model.tolist(), workload.slo_class.tolist(), strict=True)
    ):
        rows.setdefault(classify(model, slo_class), []).append(row)
    requests = {cls: _past(workload, np.array(of_class)) for cls, of_class in sorted(rows.items())}
    return History(
        at_ns=end_ns,
        classes={cls: _record(each, end_ns) for cls, each in requests.items()},
        arrivals={cls: _arrivals(each, span_s, end_ns) for cls, each in requests.items()},
    )


def _past(workload: Workload, rows: IntArray) -> _Past:
    return _Past(
        arrival_s=(workload.arrival_ns[rows] / 1e9).tolist(),
        prompt_tokens=workload.prompt_tokens[rows],
        output_tokens=workload.output_tokens[rows],
        max_tokens=workload.max_tokens[rows],
    )


def _record(past: _Past, end_ns: int) -> ClassRecord:
    stats = LengthStats()
    for output, most in zip(past.output_tokens.tolist(), past.max_tokens.tolist(), strict=True):
        # As in the engine: an answer whose own end is its last allowed token has ended by itself.
        outcome = Outcome.STOP if output <= most else Outcome.LENGTH
        stats.count(min(output, most), outcome, _WINDOW)
    return ClassRecord(
        at_ns=end_ns,
        finished=len(past.arrival_s),
        mean_prompt_tokens=float(past.prompt_tokens.mean()),
        var_prompt_tokens=float(past.prompt_tokens.var()),
        mean_max_tokens=float(past.max_tokens.mean()),
        var_max_tokens=float(past.max_tokens.var()),
        lengths=stats.value,
    )


def _arrivals(past: _Past, span_s: float, end_ns: int) -> Arrivals:
    """Return the statistics of readings at the usual interval."""
    begin_ns, ends_s = end_ns - round(span_s * 1e9), np.arange(READ_EVERY_S, span_s, READ_EVERY_S)
    came = np.searchsorted(past.arrival_s, ends_s, side="right").tolist()
    known = Arrivals(begin_ns, 0, present_ns=end_ns)
    for at_s, total in zip(ends_s.tolist(), came, strict=True):
        known = known.seen(total, begin_ns + round(at_s * 1e9), total)
    return known
