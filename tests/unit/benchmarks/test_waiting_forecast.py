import numpy as np
import pytest

from benchmarks.fidelity_workload import plan
from benchmarks.waiting_forecast import first_token_times, judge_burst
from support.constant_pace import PACE_S, PLACES, answer, constant_pace, served


def test_a_forecast_that_comes_true_has_no_error_and_a_straight_line_is_one() -> None:
    answers = [answer(0.1 + 0.05 * place, 30) for place in range(100)]
    forecast = np.array([one.token_s[0] for one in answers])
    burst = judge_burst(answers, forecast, forecast * 1.1, forecast * 1.2, places=PLACES)
    assert burst.r2 == pytest.approx(1.0)
    assert burst.forecast_error == pytest.approx(0.0)
    assert burst.short_history_error == pytest.approx(0.1)
    assert burst.known_lengths_error == pytest.approx(0.2)
    assert burst.displaced_max == 0


def test_the_first_batch_does_not_count() -> None:
    answers = [answer(0.1 + 0.05 * place, 30) for place in range(100)]
    forecast = np.array([one.token_s[0] for one in answers])
    forecast[:PLACES] *= 100
    assert judge_burst(answers, forecast, forecast, forecast, places=PLACES).forecast_error == pytest.approx(
        0.0
    )


def test_a_request_that_overtakes_is_seen() -> None:
    answers = [answer(0.1 + 0.05 * place, 30) for place in range(100)]
    answers[20], answers[27] = answers[27], answers[20]
    forecast = np.ones(100)
    assert judge_burst(answers, forecast, forecast, forecast, places=PLACES).displaced_max == 7


def test_the_whole_run_says_less_of_the_throughput_than_its_steady_part() -> None:
    planned = plan(200, float("inf"), 4)
    forecast = np.ones(200)
    burst = judge_burst(served(planned), forecast, forecast, forecast, places=PLACES)
    whole, steady = burst.tokens_per_s
    assert steady == pytest.approx(PLACES / PACE_S, rel=0.03)
    assert whole < 0.95 * steady


def test_the_forecast_knows_how_an_engine_of_constant_pace_behaves() -> None:
    planned, history = plan(200, float("inf"), 4), plan(2000, float("inf"), 5)
    forecast = first_token_times(constant_pace(), history, 200)
    burst = judge_burst(served(planned), forecast, forecast, forecast, places=PLACES)
    assert burst.forecast_error < 0.10
    assert burst.r2 > 0.98
    assert burst.plain_whole_error > burst.forecast_error
