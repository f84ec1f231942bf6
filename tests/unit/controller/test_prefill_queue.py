"""First tokens in a batch with free slots, against an engine simulated iteration by iteration."""

from dataclasses import replace

import numpy as np
import pytest

from qlm.controller.core.estimating.prefill_queue import STRATA, PrefillCosts, first_token_s
from qlm.rct_estimator.length_predictive import FloatArray
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.profiles.iteration import IterationTime
from qlm.rct_estimator.throughput import BATCHED_TOKENS_MAX
from qlm.rct_estimator.workload import Workload
from support.estimating import SHIPPED

RUNNING = 48
PROFILE = replace(
    SHIPPED,
    iteration=IterationTime(host_ms=0.0, linear_ms=((RUNNING, 10.0), (2048, 110.0)), kv_ms=0.0),
)
"""Each prompt token costs as much as the one before."""
PREFILLS = PrefillCosts(PROFILE, RUNNING, 0.010)
ROOM = BATCHED_TOKENS_MAX - RUNNING


def asking(prompt_tokens: float, cv2: float = 0.0) -> Workload:
    return Workload(prompt_tokens=prompt_tokens, output=Normal(200.0, 0.0), prompt_var=cv2 * prompt_tokens**2)


def served(rng: np.random.Generator, rate_rps: float, prompts: FloatArray) -> FloatArray:
    """Time to the first token of each request, beyond its own prompt, in an engine with chunked prefill."""
    at_s = np.cumsum(rng.exponential(1 / rate_rps, len(prompts)))
    left, first_s = prompts.copy(), np.zeros(len(prompts))
    now_s, head, came = 0.0, 0, 0
    while head < len(prompts):
        while came < len(prompts) and at_s[came] <= now_s:
            came += 1
        budget, done, computed = ROOM, head, 0.0
        while done < came and budget > 0:
            part = min(left[done], budget)
            left[done] -= part
            budget, computed = budget - part, computed + part
            done += left[done] <= 0
        now_s += 0.010 + 0.05e-3 * computed
        while head < came and left[head] <= 0:
            first_s[head] = now_s - at_s[head]
            head += 1
    return first_s - PREFILLS.seconds(prompts)


@pytest.mark.parametrize(
    ("rate_rps", "mean", "cv2"), [(2.0, 1000.0, 0.6), (6.0, 1000.0, 0.6), (2.5, 4000.0, 0.3)]
)
def test_first_tokens_are_as_late_as_forecast(rate_rps: float, mean: float, cv2: float) -> None:
    rng = np.random.default_rng(3)
    prompts = np.maximum(1.0, rng.gamma(1 / cv2, mean * cv2, 20_000).round())
    actual_s = served(rng, rate_rps, prompts)
    work = asking(mean, cv2)
    forecast_s = first_token_s(PREFILLS, [(rate_rps, work)], work, 500) - PREFILLS.seconds(np.array([500.0]))
    assert forecast_s.mean() == pytest.approx(actual_s.mean(), rel=0.12)
    low, high = np.quantile(forecast_s, [0.05, 0.95])
    assert 0.85 <= np.mean((actual_s >= low - 1e-3) & (actual_s <= high)) <= 0.97


def test_an_idle_engine_takes_the_prompt_only() -> None:
    idle = PrefillCosts(PROFILE, 0, 0.0)
    assert first_token_s(idle, [], asking(700), 700) == pytest.approx(np.full(STRATA, 0.041))
    spread = first_token_s(idle, [], asking(700, 0.5), None)
    assert spread.mean() == pytest.approx(0.041, rel=0.03)
    assert spread.std() == pytest.approx(0.035 * np.sqrt(0.5), rel=0.1)


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
