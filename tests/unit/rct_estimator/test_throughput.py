import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.correction import FACTOR_MAX, Correction
from qlm.rct_estimator.length_predictive import FloatArray
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.rct_estimator.profiles.iteration import IterationTime
from qlm.rct_estimator.profiles.profile import Profile
from qlm.rct_estimator.throughput import (
    decodes_from_empty_s,
    full_batch,
    steady_state,
)
from qlm.rct_estimator.waiting_time import waiting_times
from qlm.rct_estimator.workload import Workload, class_workload, mixture
from support.batch_slots import WAITING_R2, draw, known
from support.engine_burst import serve_burst

PROFILES = builtin_profiles()
A100 = find_profile(PROFILES, "llama-3-8b", "A100")
CHAT = Workload(prompt_tokens=600, output=Normal(150, 120.0**2))

workloads = st.builds(
    Workload,
    prompt_tokens=st.floats(0, 4000),
    output=st.builds(Normal, st.floats(1, 2000), st.floats(0, 1e6)),
)
profiles = st.sampled_from(PROFILES)


def first_tokens(profile: Profile, prompts: FloatArray, outputs: FloatArray) -> FloatArray:
    """Serve a burst on the simulated engine and return the first-token time of each request, seconds."""
    first_s = np.full(len(prompts), np.nan)
    for emission, at_s in serve_burst(profile, prompts, outputs):
        if np.isnan(first_s[int(emission.call_id)]):
            first_s[int(emission.call_id)] = at_s
    return first_s


def lognormal(rng: np.random.Generator, mean: float, log_sd: float, *shape: int) -> FloatArray:
    """Lengths of that mean before they are cut off at 512 tokens."""
    return np.clip(rng.lognormal(math.log(mean) - log_sd**2 / 2, log_sd, shape).round(), 1, 512)


@pytest.mark.parametrize(
    ("prompt", "output", "log_sd", "loss_max"),
    [
        (96, 100, 0.8, 0.003),
        (300, 100, 0.8, 0.003),
        (96, 100, 0.3, 0.003),
        (96, 100, 1.2, 0.010),
        (96, 250, 0.8, 0.008),
    ],
    ids=["typical", "long prompts", "alike", "heavy tail", "cut off"],
)
def test_a_burst_into_an_empty_batch_is_forecast_almost_as_well_as_with_the_law_known(
    prompt: float, output: float, log_sd: float, loss_max: float
) -> None:
    """The mean of many bursts is what no forecast can beat that knows the law of the lengths only."""
    bursts, requests, places = 30, 200, 16
    cpu = replace(
        find_profile(PROFILES, "llama-3-8b", "A10"),
        iteration=IterationTime(
            host_ms=0.0, linear_ms=((14, 5.77), (2048, 185.8)), kv_ms=0.00045, sequence_ms=0.0739
        ),
        seqs_max=places,
        kv_tokens=65_536,
        context_tokens=1024,
    )
    rng = np.random.default_rng(11)
    prompts = lognormal(rng, prompt, 0.8, bursts, requests)
    outputs = lognormal(rng, output, log_sd, bursts, requests)
    actual_s = np.array([first_tokens(cpu, *each) for each in zip(prompts, outputs, strict=True)])
    many, long = lognormal(rng, prompt, 0.8, 50_000), lognormal(rng, output, log_sd, 50_000)
    lengths = Normal(float(long.mean()), float(long.var()))
    law = Workload(prompt_tokens=float(many.mean()), output=lengths, output_cube=float((long**3).mean()))
    state = steady_state(cpu, law)
    forecast_s = waiting_times(state, np.arange(1, requests + 1), free=math.inf) + state.prefill_s

    def error(first_s: FloatArray) -> float:
        return float(np.abs(first_s / actual_s - 1)[:, places:].mean())

    others_s = (actual_s.sum(axis=0) - actual_s) / (bursts - 1)
    assert error(forecast_s) < error(others_s) + loss_max


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1), st.floats(0, 1e6))
def test_a_batch_that_began_empty_decodes_faster_but_never_out_of_order(
    some_s: float, more_s: float, speedup: float, scale_s: float
) -> None:
    few, many = decodes_from_empty_s(np.array([some_s, some_s + more_s]), (speedup, scale_s))
    # The absolute tolerance is for denormal numbers.
    assert (1 - speedup) * some_s * (1 - 1e-9) - 1e-12 <= few <= some_s * (1 + 1e-9)
    assert few <= many * (1 + 1e-9) + 1e-9
    assert some_s - few <= speedup * scale_s * (1 + 1e-9) + 1e-9


def test_without_answers_in_the_cache_an_iteration_is_as_much_faster_as_reading_them_takes() -> None:
    state = steady_state(replace(A100, seqs_max=32), CHAT)
    fresh_ms = replace(A100, seqs_max=32).decode_ms(32, CHAT.prompt_tokens)
    grown = replace(A100, seqs_max=32).decode_ms(32, CHAT.context_tokens)
    assert state.age_transient_share == pytest.approx(1 - fresh_ms / grown, rel=0.05)


@pytest.mark.parametrize(
    ("model", "accelerator", "places", "kv_tokens", "prompt", "output", "requests"),
    [
        ("llama-3-8b", "A10", 16, None, 64, 100, 400),
        ("llama-3-8b", "A100", 64, None, 600, 100, 600),
        ("llama-3-8b", "A10", 64, 20_000, 600, 120, 400),
        ("vicuna-13b", "A100", 32, None, 2000, 60, 300),
        ("mistral-7b", "A10", 64, None, 1155, 211, 400),
    ],
    ids=["places", "prefill", "little KV", "long prompts", "Azure chat"],
)
def test_the_forecast_of_a_burst_is_what_the_simulated_engine_does(
    model: str,
    accelerator: str,
    places: int,
    kv_tokens: int | None,
    prompt: float,
    output: float,
    requests: int,
) -> None:
    profile = find_profile(PROFILES, model, accelerator)
    profile = replace(
        profile,
        seqs_max=places,
        kv_tokens=kv_tokens or profile.kv_tokens,
        context_tokens=min(profile.context_tokens, 8192),
    )
    rng = np.random.default_rng(3)
    lengths = draw(rng, requests, median=output * 0.73)
    prompts = np.clip(rng.lognormal(math.log(prompt) - 0.125, 0.5, requests), 8, 4000).round()
    actual_s = first_tokens(profile, prompts, lengths)
    workload = Workload(
        prompt_tokens=float(prompts.mean()), output=Normal(float(lengths.mean()), float(lengths.var()))
    )
    state = steady_state(profile, workload)
    ranks = np.arange(1, requests + 1)
    forecast_s = waiting_times(state, ranks, free=math.inf) + state.prefill_s
    late = ranks > 1.2 * state.batch
    steady = slice(int(min(2 * state.batch, requests / 2)), None)
    slope_s = np.polyfit(ranks[steady], actual_s[steady], 1)[0]
    assert state.request_s == pytest.approx(slope_s, rel=0.05)
    assert np.mean(np.abs(forecast_s / actual_s - 1)[late]) < 0.05
    spread = np.sum((actual_s[late] - actual_s[late].mean()) ** 2)
    assert 1 - np.sum((actual_s - forecast_s)[late] ** 2) / spread >= WAITING_R2


def test_theta_epsilon_and_d_hang_together() -> None:
    state = steady_state(A100, CHAT)
    assert state.iteration_s > state.decode_s, "epsilon is above 1"
    assert state.service.mean == pytest.approx(state.prefill_s + 149 * state.iteration_s)
    assert state.service.mean == pytest.approx(state.batch * state.request_s, rel=0.1)


def test_theta_is_batch_over_decode_time_where_prompts_cost_nothing() -> None:
    light = replace(A100, seqs_max=32, iteration=replace(A100.iteration, linear_ms=((1, 8.0),)))
    state = steady_state(light, Workload(prompt_tokens=1, output=Normal(1000, 0)))
    tokens_per_s = state.workload.output.mean / state.request_s
    assert tokens_per_s == pytest.approx(32 / (light.decode_ms(32, 501) / 1000), rel=0.01)


def test_long_answers_hold_more_memory_than_their_mean_length_says() -> None:
    spread = replace(CHAT, output=Normal(150, 300.0**2))
    assert spread.context_tokens == pytest.approx(600 + 75 + 300**2 / 300)
    tight = replace(A100, kv_tokens=20_000)
    assert full_batch(tight, spread) < full_batch(tight, CHAT)
    assert full_batch(tight, CHAT) == pytest.approx(
        (0.99 * 20_000 - CHAT.prompt_tokens / 2) / (CHAT.context_tokens + 24)
    )


def test_prefill_bounds_throughput_by_the_token_budget() -> None:
    tight = replace(A100, batched_tokens_max=512)
    state = steady_state(tight, Workload(prompt_tokens=4000, output=Normal(2, 0)))
    assert state.request_s >= 4001 / 512 * A100.prefill_ms(1, 512) / 1000 * 0.95


@given(profiles, workloads, st.floats(1, 256))
def test_times_are_positive_and_finite(profile: Profile, workload: Workload, batch: float) -> None:
    for state in (steady_state(profile, workload), steady_state(profile, workload, batch=batch)):
        for value in (state.request_s, state.iteration_s, state.decode_s, state.prefill_s, state.alone_s):
            assert math.isfinite(value) and value > 0
        assert state.iteration_s >= state.decode_s * (1 - 1e-9)
        assert 0 <= state.prompt_s <= state.request_s
        assert 1 <= state.batch <= profile.seqs_max
        assert state.service.var >= 0


@given(profiles, workloads, st.floats(0, 2000))
def test_longer_prompts_are_never_served_faster(profile: Profile, workload: Workload, more: float) -> None:
    longer = replace(workload, prompt_tokens=workload.prompt_tokens + more)
    few, many = steady_state(profile, workload), steady_state(profile, longer)
    assert many.request_s >= few.request_s * (1 - 1e-6)


@given(st.permutations(range(3)), st.lists(st.floats(0.1, 10), min_size=3, max_size=3))
def test_a_mixture_has_the_moments_of_its_parts_in_any_order(order: list[int], shares: list[float]) -> None:
    parts = [
        (share, Workload(prompt_tokens=100.0 * (i + 1), output=Normal(50.0 + 100 * i, 100.0 * i)))
        for i, share in enumerate(shares)
    ]
    blend, turned = mixture(parts), mixture([parts[i] for i in order])
    assert blend.output.mean == pytest.approx(turned.output.mean)
    assert blend.output.var == pytest.approx(turned.output.var)
    mean = sum(s * w.output.mean for s, w in parts) / sum(shares)
    assert blend.output.mean == pytest.approx(mean)
    assert blend.output.var >= min(w.output.var for _, w in parts) - 1e-6


def test_a_class_is_described_by_its_posterior() -> None:
    few, many = (known(draw(np.random.default_rng(0), n)) for n in (5, 5000))
    assert class_workload(few, 100, 1024).mean_var > 50 * class_workload(many, 100, 1024).mean_var
    assert class_workload(many, 100, 1024).output == many.length(1024)


def test_correction_finds_the_speed_of_an_instance_through_noise() -> None:
    rng, correction = np.random.default_rng(1), Correction()
    for noise in rng.lognormal(0, 0.1, 200):
        correction = correction.observed(10.0, 10.0 * 1.4 * float(noise))
    assert correction.factor == pytest.approx(1.4, rel=0.05)
    assert correction.uncertainty < Correction().uncertainty
    assert steady_state(A100, CHAT).corrected(correction).request_s == pytest.approx(
        steady_state(A100, CHAT).request_s * correction.factor
    )


@given(st.lists(st.tuples(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6)), max_size=30))
def test_correction_stays_within_bounds_whatever_is_observed(pairs: list[tuple[float, float]]) -> None:
    correction = Correction()
    for predicted_s, actual_s in pairs:
        before = correction
        correction = correction.observed(predicted_s, actual_s)
        assert correction.factor * (1 + 1e-9) >= 1 / FACTOR_MAX
        assert correction.factor <= FACTOR_MAX * (1 + 1e-9)
        assert 0 < correction.uncertainty <= Correction().uncertainty
        assert abs(correction.log_ratio - before.log_ratio) <= 0.1


@pytest.mark.parametrize(("predicted_s", "actual_s"), [(0, 1), (1, 0), (-1, 1), (math.nan, 1), (1, math.inf)])
def test_impossible_durations_are_refused(predicted_s: float, actual_s: float) -> None:
    with pytest.raises(InvalidValueError, match="positive"):
        Correction().observed(predicted_s, actual_s)


def test_impossible_workloads_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="prompt_tokens"):
        Workload(prompt_tokens=-1, output=Normal(10))
    with pytest.raises(InvalidValueError, match=r"output\.mean"):
        Workload(prompt_tokens=1, output=Normal(0.5))
    with pytest.raises(InvalidValueError, match="shares"):
        mixture([])
