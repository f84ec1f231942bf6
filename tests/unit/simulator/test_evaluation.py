"""Forecasts against what happens: the judge, and short simulations that are forecast."""

from dataclasses import replace

import numpy as np
import pytest

from qlm.simulator.evaluation.accuracy import Pairs, accuracy, by_class, group_pairs, request_pairs
from qlm.simulator.evaluation.forecasts import ForecastRecorder
from qlm.simulator.results import SimulationResult
from qlm.simulator.scenario import Workload
from qlm.simulator.seeds import Seeds
from support.simulation import run, scenario, workload

WARM_UP, BURST, PLACES = 600, 400, 16


def then_a_burst(seeds: Seeds) -> Workload:
    """Some requests at low load, an idle time, and then many at once."""
    drawn = workload(WARM_UP + BURST, rate_rps=4.0, classes=1)(seeds)
    arrival_ns = drawn.arrival_ns.copy()
    arrival_ns[WARM_UP:] = arrival_ns[WARM_UP - 1] + 60 * 10**9
    return replace(drawn, arrival_ns=arrival_ns)


@pytest.fixture(scope="module")
def burst() -> tuple[SimulationResult, ForecastRecorder]:
    subject = scenario(then_a_burst, instances=1)
    few = {key: replace(each, seqs_max=PLACES) for key, each in subject.fleet.profiles.items()}
    recorder = ForecastRecorder(2)
    subject = replace(subject, fleet=replace(subject.fleet, profiles=few))
    return run(subject, policy="fcfs", observer=recorder), recorder


def test_waits_and_ends_of_a_burst_are_forecast(burst: tuple[SimulationResult, ForecastRecorder]) -> None:
    result, recorder = burst
    kept = {number: each for number, each in recorder.requests.items() if number >= WARM_UP}
    (rows,) = by_class(result, kept, queued_only=True).values()
    assert len(rows) == pytest.approx((BURST - PLACES) / 2, abs=2)
    for what in ("wait", "completion"):
        found = accuracy(request_pairs(result, rows, what))
        # 600 answers seen and 400 to come: their means differ by 5 % in one standard deviation.
        assert found.r2 > 0.94
        assert found.error_share < 0.12
        assert found.coverage > 0.8


def test_whole_groups_of_a_burst_are_judged(burst: tuple[SimulationResult, ForecastRecorder]) -> None:
    result, recorder = burst
    groups = [g for g in recorder.groups.values() if g.members and min(g.members) >= WARM_UP]
    found = accuracy(group_pairs(result, groups))
    assert sum(len(group.members) for group in groups) == BURST
    assert found.count == len(groups)
    assert found.error_share < 0.1


def test_equal_seeds_are_forecast_equally() -> None:
    said = []
    for _ in range(2):
        recorder = ForecastRecorder(5)
        run(scenario(workload(60, rate_rps=3.0)), observer=recorder)
        said.append([(number, each.wait, each.completion) for number, each in recorder.requests.items()])
    assert said[0] == said[1]
    assert len(said[0]) == 12


def pairs(predicted: list[float], actual: list[float], half: float = 1.0) -> Pairs:
    mean = np.array(predicted)
    return Pairs(
        predicted=mean, actual=np.array(actual), low=mean - half, high=mean + half, oracle=np.array(actual)
    )


def test_figures_of_known_pairs() -> None:
    found = accuracy(pairs([1.0, 2.0, 3.0, 6.0], [1.0, 2.0, 3.0, 4.0]))
    assert found.error_mean_s == 0.5
    assert found.error_share == pytest.approx(0.2)
    assert found.bias_s == 0.5
    assert found.r2 == pytest.approx(1 - 4 / 5)
    assert found.coverage == 0.75
    assert found.width_s == 2.0
    assert found.oracle_width_s == 0.0


def test_a_line_that_is_off_explains_all_but_is_no_good_forecast() -> None:
    found = accuracy(pairs([2.0, 4.0, 6.0], [1.0, 2.0, 3.0]))
    assert found.r2_linear == pytest.approx(1.0)
    assert found.r2 < 0


def test_nothing_to_judge_gives_no_figures() -> None:
    found = accuracy(pairs([], []))
    assert found.count == 0
    assert np.isnan(found.r2)
    assert np.isnan(found.coverage)
