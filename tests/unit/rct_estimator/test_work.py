"""Prompts and answers that depend on each other: what a request holds, and what its decodes cost."""

from dataclasses import replace

import numpy as np
import pytest

from qlm.domain.errors import InvalidValueError
from qlm.domain.fleet import ServedWork
from qlm.rct_estimator.length_predictive import FloatArray
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.rct_estimator.profiles.iteration import pairs_of
from qlm.rct_estimator.profiles.profile import Profile
from qlm.rct_estimator.served_work import served_work_s
from qlm.rct_estimator.throughput import full_batch, steady_state
from qlm.rct_estimator.workload import Workload, class_workload, mixture
from support.batch_slots import CAP, draw, known

A10 = find_profile(builtin_profiles(), "mistral-7b", "A10")
A100 = find_profile(builtin_profiles(), "mistral-7b", "A100")


def lengths(correlation: float, spread: float = 0.5) -> tuple[FloatArray, FloatArray]:
    """Log-normal prompts and answers whose logarithms are so correlated."""
    normal = np.random.default_rng(4).multivariate_normal(
        [0, 0], [[1, correlation], [correlation, 1]], 200_000
    )
    return 1500 * np.exp(spread * normal[:, 0]), 200 * np.exp(spread * normal[:, 1])


def workload(prompt: FloatArray, output: FloatArray) -> Workload:
    return Workload(
        prompt_tokens=float(prompt.mean()),
        output=Normal(float(output.mean()), float(output.var())),
        prompt_var=float(prompt.var()),
        prompt_bias=float((prompt * output).mean() / (prompt.mean() * output.mean())),
    )


@pytest.mark.parametrize("correlation", [-0.6, 0.0, 0.6])
def test_a_request_met_in_the_batch_holds_what_a_time_average_says(correlation: float) -> None:
    prompt, output = lengths(correlation)
    occupied = float((output * (prompt + output / 2)).sum() / output.sum())
    assert workload(prompt, output).context_tokens == pytest.approx(occupied, rel=0.001)


def test_more_fit_where_long_answers_have_short_prompts() -> None:
    against, apart, along = (full_batch(A10, workload(*lengths(c))) for c in (-0.6, 0.0, 0.6))
    assert against > 1.05 * apart > 1.1 * along


@pytest.mark.parametrize("correlation", [-0.6, 0.0, 0.6])
def test_the_cost_of_decodes_varies_as_tokens_times_cache(correlation: float) -> None:
    """To first order: a third too much where they are against each other."""
    prompt, output = lengths(correlation, spread=0.4)
    state = steady_state(A10, workload(prompt, output))
    assert state.kv_share == 1.0
    cost = output * (prompt + output / 2)
    assert state.work_cv2 == pytest.approx(float(cost.var() / cost.mean() ** 2), rel=0.4)


def test_where_places_bound_the_batch_the_cost_goes_with_the_answer_mostly() -> None:
    prompt, output = lengths(0.0)
    state = steady_state(replace(A100, seqs_max=8), workload(prompt, output))
    assert state.kv_share < 0.2
    assert state.work_cv2 == pytest.approx(float(output.var() / output.mean() ** 2), rel=0.2)


def test_a_mixture_holds_what_its_parts_hold() -> None:
    short, long = lengths(-0.5), lengths(0.5)
    parts = [(1.0, workload(*short)), (3.0, workload(3 * long[0], long[1] / 4))]
    prompt = np.concatenate([short[0], *([3 * long[0]] * 3)])
    output = np.concatenate([short[1], *([long[1] / 4] * 3)])
    both, pooled = mixture(parts), workload(prompt, output)
    assert both.prompt_bias == pytest.approx(pooled.prompt_bias, rel=1e-6)
    assert both.context_tokens == pytest.approx(pooled.context_tokens, rel=1e-6)


def test_where_the_token_budget_bounds_requests_queue_for_their_prefill() -> None:
    bound = steady_state(A100, Workload(prompt_tokens=3000, output=Normal(100, 100)))
    assert bound.prefill_s > 3 * bound.own_prefill_s
    whole_s = bound.prefill_s + 99 * bound.iteration_s
    # Little's law: those in the batch are those that come in the time that one is in it.
    assert whole_s / bound.request_s == pytest.approx(bound.batch, rel=0.02)
    free = steady_state(A100, Workload(prompt_tokens=100, output=Normal(500, 100)))
    assert free.prefill_s == pytest.approx(free.own_prefill_s)


def iterate(profile: Profile, rate: float, rng: np.random.Generator, cv2: float = 0.0) -> ServedWork:
    """Serve Poisson arrivals of 1500 and 200 tokens, iteration by iteration, with places for all."""
    left: list[tuple[int, float]] = []
    busy_s = request_s = 0.0
    ended = tokens = 0
    prompts = 0.0
    log_sd = np.sqrt(np.log1p(cv2))
    for _ in range(40_000):
        new = 1500 * rng.lognormal(-(log_sd**2) / 2, log_sd, int(rng.poisson(rate)))
        if not (left or len(new)):
            continue
        step_ms = profile.iteration.ms(
            tokens=len(left) + float(new.sum()),
            context_tokens=sum(prompt + 200 - steps for steps, prompt in left),
            sequences=len(left) + len(new),
            pairs=sum(pairs_of(each) for each in new.tolist()),
            mixed=len(new) > 0,
        )
        left += [(200, prompt) for prompt in new.tolist()]
        busy_s += step_ms / 1000
        request_s += len(left) * step_ms / 1000
        tokens += len(left)
        prompts += float(new.sum())
        ended += sum(steps == 1 for steps, _ in left)
        left = [(steps - 1, prompt) for steps, prompt in left if steps > 1]
    return ServedWork(
        busy_s=busy_s, request_s=request_s, prompt_tokens=round(prompts), output_tokens=tokens, ended=ended
    )


@pytest.mark.parametrize("spread", [0.1, 0.5, 0.8])
def test_ages_settle_as_those_of_many_places_that_begin_empty(spread: float) -> None:
    """The integral of what is lacking is exact; an exponential has it in common with the true course."""
    prompt, output = lengths(0.0, spread)
    output = np.maximum(1, output.round())
    work = replace(workload(prompt, output), output_cube=float((output**3).mean()))
    iterations, places = int(10 * output.mean()), 6_000
    answers = output[: places * 33].reshape(places, 33)
    ages = [np.concatenate([np.arange(each) for each in row])[:iterations] for row in answers]
    lacking = float(np.mean([np.sum(work.age_tokens - 0.5 - age) for age in ages]))
    expected = work.age_tokens * work.age_transient_tokens
    assert lacking == pytest.approx(expected, rel=0.1)


def test_answers_are_log_normal_where_their_third_moment_is_not_known() -> None:
    prompt, output = lengths(0.0)
    work = workload(prompt, output)
    exact = replace(work, output_cube=float((output**3).mean()))
    assert work.age_transient_tokens == pytest.approx(exact.age_transient_tokens, rel=0.03)
    assert replace(work, output_cube=1.0).age_transient_tokens == pytest.approx(work.age_tokens / 3)
    with pytest.raises(InvalidValueError, match="output_cube"):
        replace(work, output_cube=0.0)


def test_the_third_moment_of_a_class_and_of_a_mixture_is_that_of_its_answers() -> None:
    answers = draw(np.random.default_rng(3), 20_000)
    cls = class_workload(known(answers), 100.0, CAP)
    assert cls.cube == pytest.approx(float((answers**3).mean()), rel=0.03)
    short = class_workload(known(answers), 100.0, 64.0)
    assert short.cube == pytest.approx(float((np.minimum(answers, 64.0) ** 3).mean()), rel=0.03)
    both = mixture([(1.0, cls), (3.0, short)])
    assert both.cube == pytest.approx((cls.cube + 3 * short.cube) / 4)


@pytest.mark.parametrize("cv2", [0.0, 0.6])
@pytest.mark.parametrize("running", [3, 8])
def test_work_of_a_batch_that_comes_and_goes_is_predicted_without_bias(running: int, cv2: float) -> None:
    """The mean batch over time is larger than that of iterations: 2 to 5 % were missing."""
    work = iterate(A10, running / 200, np.random.default_rng(6), cv2)
    predicted_s = served_work_s(A10, work, started=work.ended, context_tokens=1600.0, prompt_cv2=cv2)
    assert predicted_s == pytest.approx(work.busy_s, rel=0.02)


def test_answers_that_are_alike_do_not_pile_up() -> None:
    even = Workload(prompt_tokens=0.0, output=Normal(100.0, 50.0**2))
    uneven = replace(even, output=Normal(100.0, 180.0**2))
    assert even.residual_transient_tokens == even.excess_tokens == 0.0
    assert uneven.excess_tokens == pytest.approx(uneven.age_tokens - 100.0)
    assert uneven.residual_transient_tokens > uneven.excess_tokens
