"""What an engine teaches: durations of iterations and lengths of answers."""

import random
import statistics

import numpy as np
import pytest

from qlm.agents.vllm_scheduler.iteration import LEAST_STEPS, LearnedIteration
from qlm.agents.vllm_scheduler.learned import Learned
from qlm.rct_estimator.profiles.iteration import IterationTime


def _ms(learned: IterationTime, tokens: int, cached: int) -> float:
    return learned.ms(tokens=tokens, context_tokens=cached, sequences=1, mixed=True)


def test_the_coefficients_of_iterations_are_found() -> None:
    rng, learned = random.Random(3), LearnedIteration()
    for _ in range(400):
        tokens, cached = rng.choice((1, 8, 32, 500, 2000)), rng.randrange(40_000)
        learned.observe(tokens, cached, (6.0 + 0.05 * tokens + 0.0004 * cached) / 1000 * rng.gauss(1, 0.02))
    for tokens, cached in ((1, 100), (32, 20_000), (2048, 5_000)):
        expected = 6.0 + 0.05 * tokens + 0.0004 * cached
        assert _ms(learned.iteration, tokens, cached) == pytest.approx(expected, rel=0.03)


def test_no_coefficient_is_negative_where_more_work_took_less_time() -> None:
    learned = LearnedIteration()
    for n in range(LEAST_STEPS * 4):
        learned.observe(1 + n, 10_000 - 100 * n, (50 - 0.5 * n) / 1000)
    assert learned.iteration.kv_ms >= 0
    assert _ms(learned.iteration, 100, 0) <= _ms(learned.iteration, 100, 10_000)


def test_equal_iterations_and_few_ones_give_their_mean() -> None:
    learned = LearnedIteration()
    for _ in range(3):
        learned.observe(8, 100, 0.012)
    assert _ms(learned.iteration, 8, 100) == pytest.approx(12.0)
    for _ in range(50):
        learned.observe(8, 100, 0.012)
    assert _ms(learned.iteration, 8, 100) == pytest.approx(12.0)


def test_an_empty_iteration_teaches_nothing() -> None:
    learned = LearnedIteration()
    before = learned.iteration
    learned.observe(0, 0, 0.001)
    learned.observe(5, 0, 0.0)
    assert learned.iteration == before


def test_a_given_duration_stays_and_the_smoothed_step_follows() -> None:
    given = IterationTime.constant(30.0)
    learned = Learned(given)
    assert learned.pace.step_s == 0.0
    for _ in range(100):
        learned.iterated(8, 100, 0.012)
    assert learned.iteration is given
    assert learned.pace.step_s == pytest.approx(0.012)


def test_answers_replace_the_prior_and_the_remainder_follows_them() -> None:
    learned, rng = Learned(), random.Random(1)
    lengths = [rng.choice((20, 400)) for _ in range(400)]
    for length in lengths:
        learned.ended(length, 2.0, cut_off=False)
    pace = learned.pace
    assert pace.answer_mean == pytest.approx(statistics.mean(lengths), rel=0.1)
    assert pace.answer_square_mean == pytest.approx(statistics.mean(n * n for n in lengths), rel=0.15)
    assert pace.life_s == pytest.approx(2.0)
    mean, deviation = learned.left(np.array([0, 100, 100]), np.array([2000, 2000, 150]))
    # Who has passed 20 tokens has 400, unless the limit is lower.
    assert mean[0] == pytest.approx(statistics.mean(lengths), rel=0.1)
    assert mean[1] == pytest.approx(300, rel=0.1)
    assert mean[2] <= 50
    assert deviation[1] < deviation[0]


def test_a_cut_off_answer_counts_as_longer() -> None:
    ended, cut_off = Learned(), Learned()
    for _ in range(50):
        ended.ended(100, 1.0, cut_off=False)
        cut_off.ended(100, 1.0, cut_off=True)
    assert cut_off.pace.answer_mean > 1.5 * ended.pace.answer_mean


def test_requests_are_counted_with_their_mean_prompt() -> None:
    learned = Learned()
    for tokens in (100, 200, 600):
        learned.arrived(tokens)
    assert learned.pace.requests == 3
    assert learned.pace.prompt_mean == pytest.approx(300.0)
