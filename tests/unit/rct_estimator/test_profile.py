import math
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.builtin import builtin_profiles, find_profile
from qlm.rct_estimator.profile import (
    Coefficients,
    SourceKind,
    parse_profile,
    parse_profile_text,
    profile_mapping,
)

BUILTIN = builtin_profiles()


def good() -> dict[str, Any]:
    return profile_mapping(find_profile(BUILTIN, "vicuna-13b", "A100"))


def test_the_shipped_profiles_are_the_promised_ones() -> None:
    assert {(p.model, p.accelerator) for p in BUILTIN} == {
        ("mistral-7b", "A10"),
        ("mistral-7b", "A100"),
        ("llama-3-8b", "A10"),
        ("llama-3-8b", "A100"),
        ("vicuna-13b", "A100"),
    }


@pytest.mark.parametrize("profile", BUILTIN, ids=lambda p: f"{p.model}-{p.accelerator}")
def test_a_shipped_profile_is_consistent(profile: Any) -> None:
    kv_bytes = profile.kv_tokens * profile.kv_bytes_per_token
    assert profile.weights_bytes + kv_bytes < profile.accelerator_memory_bytes
    assert profile.kv_tokens >= profile.context_tokens
    assert profile.swap_warm_s < profile.swap_reload_s < profile.swap_cold_s
    copying_s = profile.weights_bytes / profile.host_bandwidth_bytes_per_s
    assert profile.swap_warm_s >= copying_s - 0.005
    assert all("http" in s.text for s in profile.sources.values() if s.kind is SourceKind.MEASURED)


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


def test_a_larger_gpu_is_faster_and_a_smaller_model_too() -> None:
    a10, a100 = (find_profile(BUILTIN, "llama-3-8b", gpu) for gpu in ("A10", "A100"))
    mistral = find_profile(BUILTIN, "mistral-7b", "A100")
    assert mistral.decode_ms(8, 1024) < a100.decode_ms(8, 1024) < a10.decode_ms(8, 1024)
    assert mistral.prefill_ms(1, 1024) < a100.prefill_ms(1, 1024) < a10.prefill_ms(1, 1024)


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


@pytest.mark.parametrize("profile", BUILTIN, ids=lambda p: f"{p.model}-{p.accelerator}")
def test_writing_and_reading_gives_the_same_profile(profile: Any) -> None:
    assert parse_profile_text(yaml.safe_dump(profile_mapping(profile)), "x.yaml") == profile


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
