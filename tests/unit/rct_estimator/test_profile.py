import math
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.rct_estimator.profiles.file import parse_profile, parse_profile_text, profile_mapping, profile_text
from qlm.rct_estimator.profiles.iteration import Coefficients
from qlm.rct_estimator.profiles.profile import Profile, SourceKind

BUILTIN = builtin_profiles()


every_profile = pytest.mark.parametrize(
    "profile", BUILTIN, ids=lambda p: f"{p.model}-{p.accelerator}-x{p.gpus}"
)


def good() -> dict[str, Any]:
    return profile_mapping(find_profile(BUILTIN, "vicuna-13b", "A100"))


def test_the_shipped_profiles_are_the_promised_ones() -> None:
    small = {(model, gpu, 1) for model in ("mistral-7b", "llama-3-8b") for gpu in ("A10", "A100", "H100")}
    vicuna = {("vicuna-13b", "A10", 2), ("vicuna-13b", "A100", 1), ("vicuna-13b", "H100", 1)}
    llama = {("llama-70b", gpu, gpus) for gpu in ("A100", "H100") for gpus in (2, 4)}
    assert {(p.model, p.accelerator, p.gpus) for p in BUILTIN} == small | vicuna | llama


@every_profile
def test_kv_cache_and_weights_fit_in_the_memory(profile: Profile) -> None:
    kv_bytes = profile.kv_tokens * profile.kv_bytes_per_token
    assert profile.weights_bytes + kv_bytes < 0.9 * profile.accelerator_memory_bytes
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
    data_sheet = {"A10": 600e9, "A100": 2039e9, "H100": 3352e9}[profile.accelerator] * profile.gpus
    assert profile.decode_ms(1, 1) > 1000 * profile.weights_bytes / data_sheet


@every_profile
def test_prefill_is_never_faster_than_the_data_sheet(profile: Profile) -> None:
    flops = {"A10": 125e12, "A100": 312e12, "H100": 989e12}[profile.accelerator] * profile.gpus
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
    sizes = {"A10": 1, "A100": 2, "H100": 3}
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


@pytest.mark.parametrize(
    ("batch", "context", "measured_ms"),
    [
        (1, 192, 17),
        (1, 2112, 19),
        (16, 192, 19),
        (16, 1152, 26),
        (32, 192, 21),
        (32, 1152, 34),
        (64, 192, 24),
    ],
)
def test_vicuna_decodes_as_fast_as_was_measured(batch: int, context: int, measured_ms: float) -> None:
    profile = find_profile(BUILTIN, "vicuna-13b", "A100")
    assert profile.decode_ms(batch, context) == pytest.approx(measured_ms, rel=0.02)


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


@every_profile
def test_writing_and_reading_gives_the_same_profile(profile: Profile) -> None:
    assert parse_profile_text(yaml.safe_dump(profile_mapping(profile)), "x.yaml") == profile
    assert parse_profile_text(profile_text(profile), "x.yaml") == profile


def test_a_profile_without_points_and_uncertainties_is_accepted() -> None:
    plain = good()
    del plain["fits"]
    for source in plain["sources"].values():
        source.pop("uncertainty", None)
    profile = parse_profile(plain, "x.yaml")
    assert profile.fits == {}
    assert profile_mapping(profile) == plain


def change(path: str, value: Any) -> dict[str, Any]:
    plain = good()
    *folders, key = path.split(".")
    inner = plain
    for folder in folders:
        inner = inner[folder]
    if value is None:
        del inner[key]
    else:
        inner[key] = value
    return plain


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("speed", 3, "profile.speed is 3; expected no such key"),
        ("version", 2, "version is 2; expected 1"),
        ("version", None, "profile.version is None; expected a value; the key is missing"),
        ("kv_tokens", None, "profile.kv_tokens is None"),
        ("kv_tokens", "many", "kv_tokens is 'many'; expected a number"),
        ("kv_tokens", 10.5, "kv_tokens is 10.5; expected a whole number"),
        ("kv_tokens", 16, "kv_tokens is 16; expected at least 32"),
        ("gpus", True, "gpus is True; expected a number"),
        ("gpus", 0, "gpus is 0; expected a positive number"),
        ("model", "", "model is ''; expected a text"),
        ("swap_warm_s", math.nan, "swap_warm_s is nan; expected a positive number"),
        ("decode_ms", 12, "decode_ms is 12; expected a mapping with the keys alpha"),
        ("decode_ms.alpha", -0.1, "decode_ms.alpha is -0.1; expected 0 or more"),
        ("decode_ms.delta", 0, "decode_ms.delta is 0.0; expected a positive number"),
        ("decode_ms.delta", None, "decode_ms.delta is None"),
        ("decode_ms.epsilon", 1, "decode_ms.epsilon is 1; expected no such key"),
        ("sources.kv_tokens", None, "sources.kv_tokens is None"),
        ("sources.nonsense", {"derived": "x"}, "sources.nonsense is"),
        ("sources.kv_tokens", "somewhere", "sources.kv_tokens is 'somewhere'; expected one of measured"),
        ("sources.kv_tokens", {"guessed": "x"}, "expected one of measured, derived, specified"),
        ("sources.kv_tokens", {"derived": " "}, "sources.kv_tokens.derived is ' '; expected a text"),
        ("sources.kv_tokens", {"uncertainty": 0.1}, "expected one of measured, derived, specified"),
        ("sources.kv_tokens.uncertainty", -0.1, "sources.kv_tokens.uncertainty is -0.1; expected a share"),
        ("sources.kv_tokens.uncertainty", 20, "sources.kv_tokens.uncertainty is 20; expected a share"),
        ("sources.kv_tokens.uncertainty", math.nan, "uncertainty is nan; expected a share of 0 to 1"),
        ("sources.kv_tokens.uncertainty", "20 %", "uncertainty is '20 %'; expected a number"),
        ("sources.seqs_max.uncertainty", 0.1, "sources.seqs_max.uncertainty is 0.1; expected none"),
        ("kv_tokens", math.inf, "kv_tokens is inf; expected a whole number"),
        ("fits", [], "fits is []; expected a mapping with the keys prefill_ms, decode_ms"),
        ("fits.kv_tokens", {}, "fits.kv_tokens is {}; expected no such key"),
        ("fits.decode_ms.error_max", None, "fits.decode_ms.fit.error_max is None"),
        ("fits.decode_ms.error_max", 2, "fits.decode_ms.error_max is 2; expected a share of 0 to 1"),
        ("fits.decode_ms.error_mean", 0.5, "fits.decode_ms.error_mean is 0.5; expected 0 to error_max"),
        ("fits.decode_ms.points", [], "fits.decode_ms.points is []; expected at least one"),
        ("fits.decode_ms.points", 3, "fits.decode_ms.points is 3; expected a list"),
        (
            "fits.decode_ms.points",
            [[1, 2]],
            "fits.decode_ms.points.0 is [1, 2]; expected [batch, tokens, ms]",
        ),
        ("fits.decode_ms.points", [[1, 2, 0]], "fits.decode_ms.points.0.ms is 0; expected a positive number"),
        ("fits.decode_ms.points", [[1, "2", 3]], "fits.decode_ms.points.0 is '2'; expected a number"),
    ],
)
def test_a_bad_profile_is_refused_with_file_key_value_and_expectation(
    path: str, value: Any, said: str
) -> None:
    with pytest.raises(InvalidValueError) as caught:
        parse_profile(change(path, value), "mine.yaml")
    assert f"mine.yaml: {said}" in str(caught.value) or said in str(caught.value)
    assert str(caught.value).startswith("mine.yaml: ")


def test_text_that_is_no_yaml_is_refused_with_its_line() -> None:
    with pytest.raises(InvalidValueError, match=r"mine.yaml:2"):
        parse_profile_text("model: x\n  gpus: [", "mine.yaml")
    with pytest.raises(InvalidValueError, match="mapping"):
        parse_profile_text("just words", "mine.yaml")


def test_an_unknown_profile_is_refused_with_the_list_of_known_ones() -> None:
    with pytest.raises(InvalidValueError, match=r"gpt-9 on 1 x A10'; expected one of: llama-3-8b on 1 x A10"):
        find_profile(BUILTIN, "gpt-9", "A10")
