from dataclasses import replace

import numpy as np
import pytest

from benchmarks.fidelity_client import Answer
from benchmarks.fidelity_workload import Planned, plan
from benchmarks.waiting_forecast import first_token_times
from benchmarks.waiting_learned import READING_S, Floats, Learned, readings
from support.constant_pace import PACE_S, PLACES, constant_pace, served

PROFILE = constant_pace()
INTAKE_S = 0.4


def slower(answers: list[Answer], factor: float, later_s: float) -> list[Answer]:
    """The same by an engine that is slower, and that reads the whole burst before it begins."""
    return [
        replace(one, token_s=tuple(later_s + factor * token_s for token_s in one.token_s)) for one in answers
    ]


def burst(seed: int) -> tuple[list[Planned], list[Answer]]:
    planned = plan(200, float("inf"), seed)
    return planned, slower(served(planned), 1.2, INTAKE_S)


def forecast(learned: Learned | None) -> Floats:
    history = plan(1000, float("inf"), 99)
    return first_token_times(PROFILE, history, 200, learned=learned)


def test_readings_count_all_that_was_done_while_the_batch_was_full() -> None:
    planned, answers = burst(1)
    found = readings(planned, answers, PLACES)
    begun = sorted(answer.token_s[0] for answer in answers)
    assert sum(work.busy_s for work, _ in found) == pytest.approx(begun[-1] - begun[PLACES - 1])
    assert all(work.busy_s >= READING_S for work, _ in found)
    assert sum(started for _, started in found) == 200 - PLACES
    assert sum(work.prompt_tokens for work, _ in found) == sum(p.prompt_tokens for p in planned[PLACES:])
    tokens = sum(work.output_tokens for work, _ in found)
    assert tokens / sum(work.busy_s for work, _ in found) == pytest.approx(PLACES / PACE_S / 1.2, rel=0.02)


def test_a_burst_that_is_over_at_once_teaches_no_speed() -> None:
    planned = [Planned(0.0, 10, 20)] * 40
    answers = served(planned)
    assert readings(planned, answers, PLACES) == []
    learned = Learned().after(PROFILE, planned, answers, forecast(None)[:40])
    assert learned.correction.factor == 1.0
    assert len(learned.intakes_s) == 1


def test_earlier_bursts_show_how_slow_an_engine_is_and_what_it_does_before_it_begins() -> None:
    learned = Learned()
    for seed in range(10):
        learned = learned.after(PROFILE, *burst(seed), forecast(learned))
    assert learned.correction.factor == pytest.approx(1.2, rel=0.03)
    assert learned.intake_s == pytest.approx(INTAKE_S, abs=2 * PACE_S)
    actual_s = np.array([answer.token_s[0] for answer in burst(50)[1]])
    knowing, guessing = (np.abs(forecast(each) / actual_s - 1)[PLACES:].mean() for each in (learned, None))
    assert knowing < 0.6 * guessing
