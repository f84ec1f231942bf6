"""Figures that judge forecasts, and the oracle beside them."""

from dataclasses import replace

import numpy as np
import pytest

from qlm.domain.slo import DeadlineSlo, OnMiss
from qlm.simulator.evaluation.accuracy import (
    TIMES,
    Pairs,
    accuracy,
    by_class,
    request_pairs,
)
from qlm.simulator.evaluation.forecasts import ForecastRecorder
from qlm.simulator.scenario import SloClass
from support.simulation import run, scenario, workload


def pairs(actual: list[float], predicted: list[float], *, half_s: float, oracle: list[float]) -> Pairs:
    said = np.array(predicted)
    return Pairs(
        predicted=said,
        actual=np.array(actual),
        low=said - half_s,
        high=said + half_s,
        oracle=np.array(oracle),
    )


def test_figures_are_what_they_say() -> None:
    judged = accuracy(
        pairs([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 6.0], half_s=0.5, oracle=[1.1, 2.1, 3.1, np.nan])
    )
    assert judged.count == 4
    assert judged.error_mean_s == pytest.approx(0.5)
    assert judged.bias_s == pytest.approx(0.5)
    assert judged.error_share == pytest.approx(0.2)
    assert judged.r2 == pytest.approx(1 - 4 / 5)
    assert 0.8 < judged.r2_linear < 1
    assert judged.coverage == pytest.approx(0.75)
    assert judged.width_s == pytest.approx(1.0)
    assert judged.oracle_width_s == pytest.approx(0.0, abs=1e-9), "always 0.1 too late: no spread"


def test_nothing_says_nothing() -> None:
    judged = accuracy(pairs([], [], half_s=1.0, oracle=[]))
    assert judged.count == 0
    assert all(np.isnan(getattr(judged, name)) for name in ("error_mean_s", "r2", "coverage", "width_s"))


def test_forecasts_of_a_simulation_come_near_the_truth() -> None:
    """Two instances, after a hundred answers to learn from; the exact figures are a benchmark's."""
    recorder = ForecastRecorder()
    result = run(scenario(workload(400, rate_rps=25.0, classes=1)), policy="fcfs", observer=recorder)
    assert len(recorder.requests) == 400
    later = {number: each for number, each in recorder.requests.items() if number >= 100}
    (name, forecasts), *others = by_class(result, later).items()
    assert not others and name == "chat" and len(forecasts) == 300
    for time in TIMES:
        judged = accuracy(request_pairs(result, forecasts, time))
        assert judged.count == 300
    done = accuracy(request_pairs(result, forecasts, "completion"))
    assert done.error_share < 0.6 and done.width_s > 0 and done.coverage > 0.5
    for row in forecasts:
        assert row.started_ns is not None and row.started_ns >= row.at_ns
        for said in (row.wait, row.first_token, row.completion):
            assert 0 <= said.low <= said.mean <= said.high + 1e-9
        assert 0 <= row.met <= 1
    assert {each.number for each in forecasts} == set(range(100, 400))


def test_queued_requests_are_distinguished_from_those_that_found_a_slot() -> None:
    recorder = ForecastRecorder()
    result = run(
        scenario(workload(500, rate_rps=400.0, classes=1), instances=1), policy="fcfs", observer=recorder
    )
    all_of = by_class(result, recorder.requests)["chat"]
    queued = by_class(result, recorder.requests, queued_only=True)["chat"]
    assert 0 < len(queued) < len(all_of) == 500
    assert min(each.number for each in queued) > 200, "an A100 runs 256 of them at once"
    waits = request_pairs(result, queued, "wait")
    assert not np.isnan(waits.oracle).any()
    assert waits.actual.mean() > request_pairs(result, all_of, "wait").actual.mean()


def test_requests_that_were_dropped_are_not_taken_for_answers() -> None:
    dropping = SloClass(name="hurry", slo=DeadlineSlo(deadline_ms=3000), on_miss=OnMiss.DROP)
    recorder = ForecastRecorder()
    subject = scenario(workload(200, rate_rps=60.0, classes=1), instances=1)
    result = run(replace(subject, slo_classes=(dropping,)), observer=recorder)
    answered = sum(outcome in ("stop", "length") for outcome in result.outcomes.outcome)
    assert 0 < answered < 200
    for time in TIMES:
        judged = request_pairs(result, recorder.requests.values(), time)
        assert len(judged) == answered
        assert np.all(judged.actual >= 0)
