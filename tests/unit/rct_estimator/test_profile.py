from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.rct_estimator.profiles.iteration import Coefficients
from qlm.rct_estimator.profiles.profile import Profile, SourceKind

BUILTIN = builtin_profiles()


every_profile = pytest.mark.parametrize(
    "profile", BUILTIN, ids=lambda p: f"{p.model}-{p.accelerator}-x{p.gpus}"
)


def test_the_shipped_profiles_are_the_promised_ones() -> None:
    small = {(model, gpu, 1) for model in ("mistral-7b", "llama-3-8b") for gpu in ("A10", "A100", "H100")}
    small |= {("llama-3-8b", "H200", 1)}
    vicuna = {("vicuna-13b", "A10", 2), ("vicuna-13b", "A100", 1), ("vicuna-13b", "H100", 1)}
    llama = {("llama-70b", gpu, gpus) for gpu in ("A100", "H100") for gpus in (2, 4)}
    assert {(p.model, p.accelerator, p.gpus) for p in BUILTIN} == small | vicuna | llama


@every_profile
def test_kv_cache_and_weights_fit_in_the_memory(profile: Profile) -> None:
    kv_bytes = profile.kv_tokens * profile.kv_bytes_per_token
    assert profile.weights_bytes + kv_bytes < 0.92 * profile.accelerator_memory_bytes
    assert profile.kv_tokens >= profile.context_tokens
    assert profile.kv_tokens % profile.block_tokens == 0


@every_profile
def test_closer_weights_are_faster_to_wake_and_never_faster_than_the_bus(profile: Profile) -> None:
    assert profile.swap_warm_s < profile.swap_reload_s < profile.swap_cold_s
    copying_s = profile.weights_bytes / profile.host_bandwidth_bytes_per_s
    assert profile.swap_warm_s >= copying_s - 0.005


@every_profile
def test_more_work_takes_longer(profile: Profile) -> None:
    for batch in (1, 4, 32):
        for tokens in (128, 512, 2048):
            assert profile.prefill_ms(batch, tokens) < profile.prefill_ms(batch, 2 * tokens)
            assert profile.prefill_ms(batch, tokens) < profile.prefill_ms(2 * batch, tokens)
            assert profile.decode_ms(batch, tokens) < profile.decode_ms(2 * batch, tokens)
            assert profile.decode_ms(batch, tokens) <= profile.decode_ms(batch, 2 * tokens)


@every_profile
def test_decoding_is_never_faster_than_reading_the_weights(profile: Profile) -> None:
    data_sheet = {"A10": 600e9, "A100": 2039e9, "H100": 3352e9, "H200": 4800e9}[
        profile.accelerator
    ] * profile.gpus
    assert profile.decode_ms(1, 1) > 1000 * profile.weights_bytes / data_sheet


@every_profile
def test_prefill_is_never_faster_than_the_data_sheet(profile: Profile) -> None:
    flops = {"A10": 125e12, "A100": 312e12, "H100": 989e12, "H200": 989e12}[
        profile.accelerator
    ] * profile.gpus
    assert profile.prefill_ms(1, 2048) > 1000 * 2048 * profile.weights_bytes / flops


@every_profile
def test_every_derived_number_has_an_uncertainty_and_every_measured_one_an_address(profile: Profile) -> None:
    for name, source in profile.sources.items():
        if source.kind is SourceKind.DERIVED:
            assert source.uncertainty is not None, name
        if source.kind is SourceKind.MEASURED:
            assert "https://" in source.text, name


def ladder() -> list[Any]:
    """Pairs of profiles of one model, the second on more or larger accelerators."""
    sizes = {"A10": 1, "A100": 2, "H100": 3, "H200": 4}
    return [
        pytest.param(
            small,
            large,
            id=f"{small.model}-{small.accelerator}x{small.gpus}-{large.accelerator}x{large.gpus}",
        )
        for small in BUILTIN
        for large in BUILTIN
        if small.model == large.model
        and small != large
        and sizes[small.accelerator] <= sizes[large.accelerator]
        and (small.gpus <= large.gpus or small.accelerator == "A10")
    ]


@pytest.mark.parametrize(("small", "large"), ladder())
def test_a_bigger_accelerator_is_never_slower(small: Profile, large: Profile) -> None:
    for batch in (1, 4, 16, 64):
        for tokens in (128, 512, 2048):
            if batch * tokens <= 2048:
                assert large.prefill_ms(batch, tokens) <= small.prefill_ms(batch, tokens)
            if batch * tokens <= min(small.kv_tokens, large.kv_tokens):
                assert large.decode_ms(batch, tokens) <= small.decode_ms(batch, tokens)
    assert large.swap_warm_s <= small.swap_warm_s
    assert large.swap_cold_s <= small.swap_cold_s


@pytest.mark.parametrize("gpu", ["A10", "A100", "H100"])
def test_a_smaller_model_is_faster(gpu: str) -> None:
    mistral, llama = (find_profile(BUILTIN, model, gpu) for model in ("mistral-7b", "llama-3-8b"))
    assert mistral.decode_ms(8, 1024) < llama.decode_ms(8, 1024)
    assert mistral.prefill_ms(1, 1024) < llama.prefill_ms(1, 1024)


def test_the_coefficients_are_those_of_the_equations() -> None:
    assert Coefficients(alpha=2, beta=3, gamma=5, delta=7).ms(10, 100) == 2 * 10 * 100 + 3 * 10 + 5 * 100 + 7


numbers = st.floats(0, 1e6)


@given(numbers, numbers, numbers, st.floats(1e-6, 1e6), numbers, numbers)
def test_time_is_positive_and_grows_with_the_batch(
    alpha: float, beta: float, gamma: float, delta: float, batch: float, tokens: float
) -> None:
    linear = Coefficients(alpha=alpha, beta=beta, gamma=gamma, delta=delta)
    assert linear.ms(batch, tokens) > 0
    assert linear.ms(batch + 1, tokens) >= linear.ms(batch, tokens)


def test_an_unknown_profile_is_refused_with_the_list_of_known_ones() -> None:
    with pytest.raises(InvalidValueError, match=r"gpt-9 on 1 x A10'; expected one of: llama-3-8b on 1 x A10"):
        find_profile(BUILTIN, "gpt-9", "A10")


def test_a_token_budget_that_no_engine_has_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="100000000000; expected at most 1048576"):
        replace(BUILTIN[0], batched_tokens_max=10**11)
