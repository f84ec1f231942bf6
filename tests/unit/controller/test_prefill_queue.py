"""First tokens in a batch with free slots, against an engine simulated iteration by iteration."""

from dataclasses import replace

import numpy as np
import pytest

from qlm.controller.core.estimating.prefill_queue import STRATA, PrefillCosts, first_token_s
from qlm.rct_estimator.length_predictive import FloatArray
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.profiles.iteration import IterationTime, pairs_of
from qlm.rct_estimator.profiles.profile import COEFFICIENTS, NUMBERS, Profile
from qlm.rct_estimator.workload import Workload
from support.estimating import SHIPPED

RUNNING = 48
BUDGET = 2048
ENGINE = replace(
    SHIPPED,
    batched_tokens_max=BUDGET,
    async_scheduling=False,
    request_ms=0.0,
    sources={name: SHIPPED.sources["kv_tokens"] for name in (*COEFFICIENTS, *NUMBERS)},
)
FLOOR = replace(
    ENGINE,
    iteration=IterationTime(
        host_ms=2.0,
        linear_ms=((1, 8.0), (400, 8.0), (2048, 90.4)),
        kv_ms=0.0,
        kv_mixed_ms=2e-5,
        sequence_ms=0.0,
        square_ms=2e-6,
    ),
)
"""Weights are read for 8 ms, computing more than 400 tokens takes longer."""
PROFILE = replace(
    ENGINE,
    iteration=IterationTime(host_ms=0.0, linear_ms=((RUNNING, 10.0), (2048, 110.0)), kv_ms=0.0),
)
"""Each prompt token costs as much as the one before."""
ROOM = BUDGET - RUNNING
CONTEXT = 1000.0


def beside(profile: Profile, running: float = RUNNING) -> PrefillCosts:
    """Prompts beside that many requests, whose iterations take 10 ms."""
    return PrefillCosts(
        profile=profile,
        running=running,
        context_tokens=CONTEXT,
        decode_s=0.010 if running else 0.0,
    )


PREFILLS = beside(PROFILE)


def asking(prompt_tokens: float, cv2: float = 0.0) -> Workload:
    return Workload(prompt_tokens=prompt_tokens, output=Normal(200.0, 0.0), prompt_var=cv2 * prompt_tokens**2)


def served(profile: Profile, rng: np.random.Generator, rate_rps: float, prompts: FloatArray) -> FloatArray:
    """Time to the first token of each request, beyond its own prompt, in an engine with chunked prefill."""
    at_s = np.cumsum(rng.exponential(1 / rate_rps, len(prompts)))
    left, first_s = prompts.copy(), np.zeros(len(prompts))
    now_s, head, came = 0.0, 0, 0
    while head < len(prompts):
        while came < len(prompts) and at_s[came] <= now_s:
            came += 1
        budget, done, pairs = ROOM, head, 0.0
        while done < came and budget > 0:
            part = min(left[done], budget)
            pairs += pairs_of(part, prompts[done] - left[done])
            left[done] -= part
            budget -= part
            done += left[done] <= 0
        now_s += (
            profile.iteration.ms(
                tokens=RUNNING + ROOM - budget,
                context_tokens=RUNNING * CONTEXT,
                sequences=RUNNING,
                pairs=pairs,
                mixed=budget < ROOM,
            )
            / 1000
        )
        while head < came and left[head] <= 0:
            first_s[head] = now_s - at_s[head]
            head += 1
    return first_s - beside(profile).seconds(prompts)


@pytest.mark.parametrize(
    ("rate_rps", "mean", "cv2"), [(2.0, 1000.0, 0.6), (6.0, 1000.0, 0.6), (2.5, 4000.0, 0.3)]
)
@pytest.mark.parametrize("profile", [PROFILE, FLOOR], ids=["line", "floor"])
def test_first_tokens_are_as_late_as_forecast(
    profile: Profile, rate_rps: float, mean: float, cv2: float
) -> None:
    rng = np.random.default_rng(3)
    prompts = np.maximum(1.0, rng.gamma(1 / cv2, mean * cv2, 20_000).round())
    actual_s = served(profile, rng, rate_rps, prompts)
    work, prefills = asking(mean, cv2), beside(profile)
    forecast_s = first_token_s(prefills, [(rate_rps, work)], work, 500) - prefills.seconds(np.array([500.0]))
    assert forecast_s.mean() == pytest.approx(actual_s.mean(), rel=0.12)
    low, high = np.quantile(forecast_s, [0.05, 0.95])
    assert 0.85 <= np.mean((actual_s >= low - 1e-3) & (actual_s <= high)) <= 0.97


def test_an_idle_engine_takes_the_prompt_only() -> None:
    idle = beside(
        replace(PROFILE, iteration=replace(PROFILE.iteration, linear_ms=((1, 6.0), (2001, 106.0)))), 0
    )
    assert first_token_s(idle, [], asking(701), 701) == pytest.approx(np.full(STRATA, 0.041))
    spread = first_token_s(idle, [], asking(701, 0.5), None)
    assert spread.mean() == pytest.approx(0.041, rel=0.03)
    assert spread.std() == pytest.approx(0.035 * np.sqrt(0.5), rel=0.1)


@pytest.mark.parametrize("prompt", [1, 300, 353, 1500, 2000, 2001, 5000])
@pytest.mark.parametrize("running", [0, RUNNING])
@pytest.mark.parametrize("admission_ms", [0.0, 4.0])
def test_a_prompt_alone_takes_the_iterations_of_the_profile(
    prompt: int, running: int, admission_ms: float
) -> None:
    profile = replace(FLOOR, iteration=replace(FLOOR.iteration, admission_ms=admission_ms))
    costs, at, expected_ms = beside(profile, running), 0, 0.0
    while at < prompt:
        new = min(prompt - at, int(costs.budget_tokens))
        expected_ms += profile.iteration.ms(
            tokens=running + new,
            context_tokens=running * CONTEXT,
            sequences=running + 1,
            pairs=pairs_of(new, at),
            admitted=float(at == 0),
            mixed=True,
        )
        at += new
    assert costs.seconds(np.array([float(prompt)])) == pytest.approx(expected_ms / 1000)


def test_asynchronous_scheduling_delays_a_prompt_by_an_iteration_unless_the_engine_is_idle() -> None:
    work = asking(500)
    for running, delay_s in ((RUNNING, 0.010), (0, 0.0)):
        early, plain = (
            first_token_s(beside(replace(PROFILE, async_scheduling=flag), running), [], work, 500)
            for flag in (True, False)
        )
        assert early - plain == pytest.approx(np.full(STRATA, delay_s))


def test_a_prompt_waits_for_two_iterations_and_is_computed_with_those_that_came_with_it() -> None:
    work, early = asking(1000, 0.6), beside(replace(PROFILE, async_scheduling=True))
    own_s = float(early.seconds(np.array([500.0]))[0])
    waited_s = first_token_s(early, [(6.0, work)], work, 500).mean() - own_s
    # 6 prompts a second of 50 ms each, squares 4 ms^2 s: iterations of 10 ms without them take 10 / 0.7 ms in
    # the mean. A request comes upon one that is longer by 6 x 4 / (1 - 0.3^2) ms, waits for half of it and
    # all of the next, and 0.3 of the former is the work that came with it.
    mean_s = 0.010 / 0.7
    upon_s = mean_s + 6 * 0.050**2 * 1.6 / (1 - 0.3**2)
    assert waited_s == pytest.approx(upon_s * (0.5 + 0.3) + mean_s, rel=0.08)


def test_a_long_prompt_takes_several_iterations() -> None:
    one, two = PREFILLS.seconds(np.array([ROOM, ROOM + 1.0]))
    assert two - one == pytest.approx(0.010, rel=0.02)


def test_prompts_that_piled_up_are_waited_for() -> None:
    work, piled = asking(1000), Normal(2.0, 0.25)
    forecast_s = first_token_s(PREFILLS, [(6.0, work)], work, ROOM, piled)
    assert forecast_s.mean() == pytest.approx(2.0 + 0.110 + 0.005, rel=0.01)
    assert forecast_s.std() == pytest.approx(0.5, rel=0.06)


def test_no_share_makes_it_endless() -> None:
    work = asking(1000)
    assert np.isfinite(first_token_s(PREFILLS, [(1000.0, work)], work, None)).all()


@pytest.mark.parametrize("cv2", [0.0, 1e-9, 30.0, 1e4])
@pytest.mark.parametrize("rate_rps", [1e-9, 0.5, 5.0])
def test_whatever_the_dispersion_of_prompts_it_has_a_mean(cv2: float, rate_rps: float) -> None:
    work = asking(300, cv2)
    for prompt_tokens in (None, 1, 5000):
        forecast_s = first_token_s(PREFILLS, [(rate_rps, work)], work, prompt_tokens)
        assert np.isfinite(forecast_s).all()
        assert np.all(np.diff(forecast_s) >= 0)
        assert forecast_s[0] > 0.01
