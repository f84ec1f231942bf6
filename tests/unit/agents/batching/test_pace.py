"""What a host learns of its instance."""

import numpy as np
import pytest

from qlm.agents.batching.pace import PRIOR_ANSWERS, PRIOR_TOKENS, PaceMeter, tokens_left


def test_answers_shrink_to_the_prior_while_few_were_seen() -> None:
    meter = PaceMeter()
    assert meter.pace().answer_mean == PRIOR_TOKENS
    for _ in range(1000):
        meter.ended(50, 3.0)
    pace = meter.pace()
    assert pace.answer_mean == pytest.approx((50_000 + PRIOR_ANSWERS * PRIOR_TOKENS) / (1000 + PRIOR_ANSWERS))
    assert pace.life_s == 3.0


def test_the_step_is_the_same_for_one_report_or_many() -> None:
    once, often = PaceMeter(), PaceMeter()
    for meter in (once, often):
        meter.iterated(1, 0.5)
    once.iterated(8, 8 * 0.02)
    for _ in range(8):
        often.iterated(1, 0.02)
    assert once.pace().step_s == pytest.approx(often.pace().step_s)
    assert once.pace().step_s == pytest.approx(0.02 + 0.48 * 0.95**8)


def test_something_is_left_of_an_answer_that_is_long_already() -> None:
    pace = PaceMeter().pace()
    generated, limit = np.array([0, 150, 900, 900, 0]), np.array([4096, 4096, 4096, 910, 1])
    mean, deviation = tokens_left(pace, generated, limit)
    assert mean.tolist() == [200.0, 100.0, 100.0, 10.0, 1.0]
    assert deviation.tolist() == [200.0, 200.0, 200.0, 10.0, 1.0]


def test_prompts_preemptions_and_requests_are_counted() -> None:
    meter = PaceMeter()
    meter.arrived(100)
    meter.arrived(300)
    meter.preempted()
    pace = meter.pace()
    assert (pace.prompt_mean, pace.preemptions, pace.requests) == (200.0, 1, 2)
