"""Forecast of first-token times before a burst, and its comparison with the outcome; pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.fidelity_client import Answer
from benchmarks.fidelity_compare import steady_tokens_per_s
from benchmarks.fidelity_workload import ANSWERS, Planned
from benchmarks.waiting_learned import Floats, Learned
from qlm.rct_estimator.output_length import observe_all, typical_prior
from qlm.rct_estimator.profiles.profile import Profile
from qlm.rct_estimator.throughput import steady_state
from qlm.rct_estimator.waiting_time import waiting_times
from qlm.rct_estimator.workload import class_workload

R2_MIN = 0.98
FORECAST_ERROR_MAX = 0.10


def first_token_times(
    profile: Profile,
    history: Sequence[Planned],
    requests: int,
    *,
    learned: Learned | None = None,
) -> Floats:
    """Forecast the first-token time of each request of a burst on an idle engine, in seconds.

    Only the size of the burst and its class are known.

    Args:
        profile: Profile of the engine.
        history: Ended requests of the class.
        requests: Size of the burst.
        learned: State after earlier bursts of that size; None without any.

    Returns:
        Times by position in the queue, shape (requests,).
    """
    tokens = np.array([one.output_tokens for one in history], dtype=np.float64)
    cut_off = tokens >= ANSWERS.tokens_max
    lengths = observe_all(typical_prior(ANSWERS.tokens_max), tokens, cut_off).predictive()
    prompts = np.array([one.prompt_tokens for one in history], dtype=np.float64)
    workload = class_workload(
        lengths, float(prompts.mean()), ANSWERS.tokens_max, prompt_var=float(prompts.var())
    )
    state = steady_state(profile, workload)
    learned = learned or Learned()
    state = state.corrected(learned.correction)
    ranks = np.arange(1, requests + 1)
    return learned.intake_s + waiting_times(state, ranks, free=np.inf) + state.prefill_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """Figures of one burst, over the requests beyond the first batch; errors are shares.

    Attributes:
        r2: R² of the linear relation of waiting time to position.
        forecast_error: Mean relative error of the forecast.
        short_history_error: Same error for a forecast from fewer earlier answers.
        known_lengths_error: Same error with the lengths of this burst as history: the part of speed and
            formula, without that of the drawn lengths.
        plain_whole_error: Mean relative error of (r - 1) mu / Theta, with Theta of the whole run and the mean
            length of the burst itself.
        plain_steady_error: Same error with Theta of the steady part.
        plain_medians: Medians of these two errors.
        tokens_per_s: Theta of the whole run, and of the steady part.
        displaced_max: Largest difference of positions in the orders of first tokens and of sending.
        sending_s: Time from the first to the last sending.
    """

    r2: float
    forecast_error: float
    short_history_error: float
    known_lengths_error: float
    plain_whole_error: float
    plain_steady_error: float
    plain_medians: tuple[float, float]
    tokens_per_s: tuple[float, float]
    displaced_max: int
    sending_s: float


def judge_burst(
    answers: Sequence[Answer], forecast: Floats, short: Floats, known: Floats, *, places: int
) -> Burst:
    """Compare a burst with its forecasts.

    Args:
        answers: Answers in order of sending, which is the position in the queue; more than `places`.
        forecast: First-token times from the first request's sending, by position.
        short: Same times, from a shorter history.
        known: Same times, from the lengths of the burst.
        places: Batch slots.
    """
    start_s = min(answer.sent_s for answer in answers)
    beyond = slice(places, None)
    waits = np.array([answer.wait_s for answer in answers])[beyond]
    actual = np.array([answer.token_s[0] - start_s for answer in answers])
    positions = np.arange(1, len(answers) + 1, dtype=np.float64)
    tokens = sum(len(answer.token_s) for answer in answers)
    whole = tokens / (max(answer.token_s[-1] for answer in answers) - start_s)
    steady = steady_tokens_per_s(answers, places)
    assert steady is not None, "a burst beyond the first batch has a steady part"
    mean = tokens / len(answers)

    def errors(predicted: Floats) -> Floats:
        return np.asarray(np.abs(predicted[beyond] / actual[beyond] - 1), dtype=np.float64)

    def error(predicted: Floats) -> float:
        return float(errors(predicted).mean())

    plain_whole, plain_steady = ((positions - 1) * mean / theta for theta in (whole, steady))

    return Burst(
        r2=float(np.corrcoef(positions[beyond], waits)[0, 1] ** 2),
        forecast_error=error(forecast),
        short_history_error=error(short),
        known_lengths_error=error(known),
        plain_whole_error=error(plain_whole),
        plain_steady_error=error(plain_steady),
        plain_medians=(float(np.median(errors(plain_whole))), float(np.median(errors(plain_steady)))),
        tokens_per_s=(whole, steady),
        displaced_max=int(np.abs(np.argsort(np.argsort(actual, kind="stable")) - positions + 1).max()),
        sending_s=max(answer.sent_s for answer in answers) - start_s,
    )
