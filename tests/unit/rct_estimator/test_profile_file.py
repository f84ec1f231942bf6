"""Profile files: version 2 is written and read, version 1 is read, and every bad key gets one clear error."""

import copy
import math
from typing import Any

import pytest
import yaml

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.profiles.builtin import builtin_profiles, unmeasured_profile
from qlm.rct_estimator.profiles.file import parse_profile, parse_profile_text, profile_mapping, profile_text
from qlm.rct_estimator.profiles.iteration import Coefficients, Equations, IterationTime
from qlm.rct_estimator.profiles.points import FitPoint, FitPoints
from qlm.rct_estimator.profiles.profile import COEFFICIENTS, Profile, Source, SourceKind

every_profile = pytest.mark.parametrize(
    "profile", builtin_profiles(), ids=lambda p: f"{p.model}-{p.accelerator}-x{p.gpus}"
)

ITERATION = {
    "host_ms": 1.0,
    "linear_ms": [[1, 11.0], [190, 11.5], [2048, 150.0]],
    "kv_ms": 8e-5,
    "kv_mixed_ms": 1.1e-4,
    "sequence_ms": 0.02,
    "square_ms": 2e-6,
    "admission_ms": 2.5,
}
FIT = {
    "points": [[1, 512, 0, 0, 0, 30.5], [0, 0, 0, 8, 128.5, 12.5], [1, 128, 2048, 8, 1024, 14.0]],
    "error_mean": 0.01,
    "error_max": 0.02,
    "held_out_mean": 0.015,
    "held_out_max": 0.03,
    "unidentified": ["host_ms"],
}
PREFILL = {"alpha": 0.05, "beta": 0.0, "gamma": 0.0, "delta": 5.0}
DECODE = {"alpha": 1e-4, "beta": 0.03, "gamma": 0.0, "delta": 12.0}


def good() -> dict[str, Any]:
    """Return a file of version 2 with every key there is."""
    plain = profile_mapping(unmeasured_profile("m", "X", context_tokens=8192))
    plain |= {"iteration": ITERATION, "fit": FIT, "async_scheduling": False}
    plain["equations"] = {"prefill_ms": PREFILL, "decode_ms": DECODE}
    plain["sources"].pop("gpus", None)
    plain["sources"]["kv_tokens"] = {"derived": "x", "uncertainty": 0.1}
    plain["sources"]["seqs_max"] = {"specified": "x"}
    copied: dict[str, Any] = copy.deepcopy(plain)
    return copied


def version_1() -> dict[str, Any]:
    """Return a file of version 1 with every key there was."""
    plain = good()
    for key in ("engine", "iteration", "async_scheduling", "batched_tokens_max", "fit"):
        del plain[key]
    equations, sources = plain.pop("equations"), plain.pop("sources")
    sources = {
        key: value for key, value in sources.items() if key not in (*COEFFICIENTS, "batched_tokens_max")
    }
    sources |= {"prefill_ms": {"measured": "p"}, "decode_ms": {"derived": "d", "uncertainty": 0.2}}
    fits = {
        "prefill_ms": {"points": [[1, 512, 31.0]], "error_mean": 0.01, "error_max": 0.02},
        "decode_ms": {"points": [[4, 256, 12.2]], "error_mean": 0.03, "error_max": 0.04},
    }
    return {**plain, **equations, "version": 1, "sources": sources, "fits": fits}


@every_profile
def test_writing_and_reading_gives_the_same_profile(profile: Profile) -> None:
    assert parse_profile_text(yaml.safe_dump(profile_mapping(profile)), "x.yaml") == profile
    assert parse_profile_text(profile_text(profile), "x.yaml") == profile


def test_a_file_of_version_2_is_read_key_by_key() -> None:
    plain = good()
    profile = parse_profile(plain, "x.yaml")
    assert profile.iteration == IterationTime(
        host_ms=1.0, linear_ms=((1, 11.0), (190, 11.5), (2048, 150.0)), kv_ms=8e-5, kv_mixed_ms=1.1e-4,
        sequence_ms=0.02, square_ms=2e-6, admission_ms=2.5,
    )  # fmt: skip
    assert profile.fit == FitPoints(
        points=tuple(FitPoint(*row) for row in FIT["points"]),  # type: ignore[attr-defined]
        error_mean=0.01, error_max=0.02, held_out_mean=0.015, held_out_max=0.03, unidentified=("host_ms",),
    )  # fmt: skip
    assert (profile.engine, profile.async_scheduling, profile.batched_tokens_max) == ("any", False, 2048)
    assert profile_mapping(profile) == plain


def test_a_profile_without_what_may_be_left_out_is_accepted() -> None:
    plain = good()
    del plain["fit"], plain["equations"]
    for name in ("kv_mixed_ms", "sequence_ms", "square_ms", "admission_ms"):
        del plain["iteration"][name], plain["sources"][name]
    profile = parse_profile(plain, "x.yaml")
    assert (profile.fit, profile.equations) == (None, None)
    assert profile.iteration.kv_beside_prompts_ms == profile.iteration.kv_ms
    assert profile.iteration.admission_ms == 0
    assert profile_mapping(profile) == plain


def test_free_context_beside_prompts_is_not_taken_for_one_left_out() -> None:
    plain = change(good(), "iteration.kv_mixed_ms", 0.0)
    profile = parse_profile(plain, "x.yaml")
    assert parse_profile_text(profile_text(profile), "x.yaml") == profile
    assert profile.iteration.kv_beside_prompts_ms == 0


def test_a_file_of_version_1_is_read_as_one_pass_over_the_weights() -> None:
    profile = parse_profile(version_1(), "x.yaml")
    assert profile.equations == Equations(Coefficients(**PREFILL), Coefficients(**DECODE))
    assert profile.iteration.linear(8) == 12.0
    assert profile.prefill_ms(1, 1024) == pytest.approx(5.0 + 0.05 * 1024 + 0.03)
    assert profile.decode_ms(8, 500) == pytest.approx(12.0 + 8 * 0.03 + 1e-4 * 8 * 500)
    assert (profile.batched_tokens_max, profile.async_scheduling) == (2048, False)
    assert profile.sources["linear_ms"] == Source(SourceKind.MEASURED, "p")
    assert profile.sources["kv_ms"] == Source(SourceKind.DERIVED, "d", 0.2)
    assert profile.fit == FitPoints(
        points=(FitPoint(1, 512, 0, 0, 0, 31.0), FitPoint(0, 0, 0, 4, 256, 12.2)),
        error_mean=0.03, error_max=0.04,
    )  # fmt: skip
    written = profile_mapping(profile)
    assert written["version"] == 2
    assert parse_profile(written, "x.yaml") == profile


def change(plain: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    *folders, key = path.split(".")
    inner: Any = plain
    for folder in folders:
        inner = inner[int(folder)] if isinstance(inner, list) else inner[folder]
    if value is None:
        del inner[key]
    else:
        inner[key] = value
    return plain


def refusal(plain: dict[str, Any]) -> str:
    with pytest.raises(InvalidValueError) as caught:
        parse_profile(plain, "mine.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("speed", 3, "profile.speed is 3; expected no such key"),
        ("version", 3, "version is 3; expected 1 or 2"),
        ("version", None, "profile.version is None; expected a value; the key is missing"),
        ("engine", 3, "engine is 3; expected a text"),
        ("engine", None, "profile.engine is None"),
        ("async_scheduling", "yes", "async_scheduling is 'yes'; expected true or false"),
        ("batched_tokens_max", None, "profile.batched_tokens_max is None"),
        ("batched_tokens_max", 0, "batched_tokens_max is 0; expected a positive number"),
        ("kv_tokens", None, "profile.kv_tokens is None"),
        ("kv_tokens", "many", "kv_tokens is 'many'; expected a number"),
        ("kv_tokens", 10.5, "kv_tokens is 10.5; expected a whole number"),
        ("kv_tokens", 16, "kv_tokens is 16; expected at least 32"),
        ("kv_tokens", math.inf, "kv_tokens is inf; expected a whole number"),
        ("kv_tokens", 10**400, "expected a whole number of at most 9007199254740992"),
        ("seqs_max", 1e300, "seqs_max is 1e+300; expected a whole number of at most 9007199254740992"),
        ("swap_warm_s", 10**400, "expected a whole number of at most"),
        ("gpus", True, "gpus is True; expected a number"),
        ("gpus", 0, "gpus is 0; expected a positive number"),
        ("model", "", "model is ''; expected a text"),
        ("swap_warm_s", math.nan, "swap_warm_s is nan; expected a positive number"),
        ("iteration", 12, "iteration is 12; expected a mapping with the keys host_ms, linear_ms, kv_ms"),
        ("iteration.kv_ms", None, "iteration.kv_ms is None"),
        ("iteration.kv_ms", -0.1, "iteration.kv_ms is -0.1; expected 0 or more"),
        ("iteration.kv_mixed_ms", "2", "iteration.kv_mixed_ms is '2'; expected a number"),
        ("iteration.kv_ms", 10**400, "expected a whole number of at most"),
        ("iteration.linear_ms", [[10**400, 1]], "expected a whole number of at most"),
        ("iteration.speed", 1, "iteration.speed is 1; expected no such key"),
        ("iteration.linear_ms", [], "iteration.linear_ms is []; expected at least one point"),
        ("iteration.linear_ms", [[1, 2, 3]], "iteration.linear_ms is [[1, 2, 3]]; expected a list of"),
        ("iteration.linear_ms", [[1, 0]], "iteration.linear_ms.0.ms is 0.0; expected a positive number"),
        ("iteration.linear_ms", [[1, 5], [1, 6]], "iteration.linear_ms.1 is [1, 6.0]; expected more tokens"),
        ("iteration.linear_ms", [[1, 5], [9, 4]], "iteration.linear_ms.1 is [9, 4.0]; expected more tokens"),
        ("equations.decode_ms", None, "equations.decode_ms is None"),
        ("equations.decode_ms.delta", 0, "equations.decode_ms.delta is 0.0; expected a positive number"),
        ("sources.kv_tokens", None, "sources is ["),
        ("sources.linear_ms", None, "sources is ["),
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
        ("fit", [], "fit is []; expected a mapping with the keys points, error_mean, error_max"),
        ("fit.error_max", None, "fit.error_max is None"),
        ("fit.error_max", 2, "fit.error_max is 2; expected a share of 0 to 1"),
        ("fit.error_mean", 0.5, "fit.error_mean is 0.5; expected 0 to error_max"),
        ("fit.held_out_max", None, "fit.held_out_mean is 0.015; expected given together with held_out_max"),
        ("fit.unidentified", "host_ms", "fit.unidentified is 'host_ms'; expected a list"),
        ("fit.error_max", 10**400, "expected a whole number of at most"),
        ("fit.points", [[10**400, 2, 0, 0, 0, 3]], "expected a whole number of at most"),
        ("fit.points", [], "fit.points is []; expected at least one"),
        ("fit.points", 3, "fit.points is 3; expected a list"),
        ("fit.points", [[1, 2]], "fit.points.0 is [1, 2]; expected [prompts, new, position"),
        ("fit.points", [[1, 2, 0, 0, 0, 0]], "fit.points.0.ms is 0; expected a positive number"),
        ("fit.points", [[0, 2, 0, 0, 0, 5]], "fit.points.0 is 0; expected a positive number"),
        ("fit.points", [[1, "2", 0, 0, 0, 3]], "fit.points.0 is '2'; expected a number"),
    ],
)
def test_a_bad_file_is_refused_with_its_name_key_value_and_expectation(
    path: str, value: Any, said: str
) -> None:
    message = refusal(change(good(), path, value))
    assert message.startswith("mine.yaml: ")
    assert said in message


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("engine", "vLLM", "profile.engine is 'vLLM'; expected no such key"),
        ("decode_ms", 12, "decode_ms is 12; expected a mapping with the keys alpha"),
        ("decode_ms.alpha", -0.1, "decode_ms.alpha is -0.1; expected 0 or more"),
        ("decode_ms.delta", None, "decode_ms.delta is None"),
        ("decode_ms.epsilon", 1, "decode_ms.epsilon is 1; expected no such key"),
        ("sources.decode_ms", None, "also a source of decode_ms"),
        ("sources.kv_tokens", None, "also a source of kv_tokens"),
        ("fits", [], "fits is []; expected a mapping with the keys prefill_ms, decode_ms"),
        ("fits.kv_tokens", {}, "fits.kv_tokens is {}; expected no such key"),
        ("fits.decode_ms.error_max", None, "fits.decode_ms.error_max is None"),
        (
            "fits.decode_ms.points",
            [[1, 2]],
            "fits.decode_ms.points.0 is [1, 2]; expected [batch, tokens, ms]",
        ),
        ("fits.decode_ms.points", [[1, 2, 0]], "fits.decode_ms.points.0.ms is 0; expected a positive number"),
    ],
)
def test_a_bad_file_of_version_1_is_refused_in_the_same_way(path: str, value: Any, said: str) -> None:
    message = refusal(change(version_1(), path, value))
    assert message.startswith("mine.yaml: ")
    assert said in message


def test_text_that_is_no_yaml_is_refused_with_its_line() -> None:
    with pytest.raises(InvalidValueError, match=r"mine.yaml:2"):
        parse_profile_text("model: x\n  gpus: [", "mine.yaml")
    with pytest.raises(InvalidValueError, match="mapping"):
        parse_profile_text("just words", "mine.yaml")
    with pytest.raises(InvalidValueError, match=r"mine.yaml is 'nested too deeply'"):
        parse_profile_text("[" * 5000, "mine.yaml")


@pytest.mark.parametrize("value", [10**400, -(10**400)])
def test_a_coefficient_beyond_every_float_is_refused(value: int) -> None:
    with pytest.raises(InvalidValueError, match="kv_ms is"):
        IterationTime(host_ms=0.0, linear_ms=((1.0, 1.0),), kv_ms=value)
