import heapq
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.fidelity_client import Answer
from benchmarks.fidelity_workload import Planned, plan
from benchmarks.waiting_forecast import first_token_times, judge_burst
from qlm.rct_estimator.builtin import builtin_profiles, find_profile
from qlm.rct_estimator.profile import Coefficients, Profile

PLACES = 16
PROFILE = find_profile(builtin_profiles(), "llama-3-8b", "A100")
PACE_S = 0.02


def answer(first_s: float, tokens: int) -> Answer:
    return Answer(0.0, 0.0, tuple(first_s + PACE_S * k for k in range(tokens)))


def served(planned: list[Planned]) -> list[Answer]:
    """An engine of constant pace: prompts cost nothing, each place gives a token every PACE_S."""
    free_s = [0.0] * PLACES
    answers = []
    for one in planned:
        begun_s = heapq.heappop(free_s)
        heapq.heappush(free_s, begun_s + PACE_S * one.output_tokens)
        answers.append(answer(begun_s + PACE_S, one.output_tokens))
    return answers


def test_a_forecast_that_comes_true_has_no_error_and_a_straight_line_is_one() -> None:
    answers = [answer(0.1 + 0.05 * place, 30) for place in range(100)]
    told = np.array([one.token_s[0] for one in answers])
    burst = judge_burst(answers, told, told * 1.1, told * 1.2, places=PLACES)
    assert burst.r2 == pytest.approx(1.0)
    assert burst.forecast_error == pytest.approx(0.0)
    assert burst.short_history_error == pytest.approx(0.1)
    assert burst.known_lengths_error == pytest.approx(0.2)
    assert burst.displaced_max == 0


def test_the_first_batch_does_not_count() -> None:
    answers = [answer(0.1 + 0.05 * place, 30) for place in range(100)]
    told = np.array([one.token_s[0] for one in answers])
    told[:PLACES] *= 100
    assert judge_burst(answers, told, told, told, places=PLACES).forecast_error == pytest.approx(0.0)


def test_a_request_that_overtakes_is_seen() -> None:
    answers = [answer(0.1 + 0.05 * place, 30) for place in range(100)]
    answers[20], answers[27] = answers[27], answers[20]
    told = np.ones(100)
    assert judge_burst(answers, told, told, told, places=PLACES).displaced_max == 7


def test_the_whole_run_says_less_of_the_throughput_than_its_steady_part() -> None:
    planned = plan(200, float("inf"), 4)
    told = np.ones(200)
    burst = judge_burst(served(planned), told, told, told, places=PLACES)
    whole, steady = burst.tokens_per_s
    assert steady == pytest.approx(PLACES / PACE_S, rel=0.03)
    assert whole < 0.95 * steady


def test_the_forecast_knows_how_an_engine_of_constant_pace_behaves() -> None:
    planned, history = plan(200, float("inf"), 4), plan(2000, float("inf"), 5)
    forecast = first_token_times(constant_pace(), history, 200, batched_tokens_max=2048)
    burst = judge_burst(served(planned), forecast, forecast, forecast, places=PLACES)
    assert burst.forecast_error < 0.10
    assert burst.r2 > 0.98
    assert burst.plain_whole_error > burst.forecast_error


def constant_pace() -> Profile:
    """Iterations that always take the same."""
    always = Coefficients(alpha=0.0, beta=0.0, gamma=0.0, delta=1000 * PACE_S)
    return replace(
        PROFILE,
        prefill=always,
        decode=always,
        seqs_max=PLACES,
    )
