"""Token budget of an iteration by default: the rule of vLLM."""

import pytest

from qlm.rct_estimator.profiles.builtin import builtin_profiles, unmeasured_profile
from qlm.rct_estimator.profiles.token_budget import (
    Defaults,
    default_batched_tokens,
    default_seqs_max,
    defaults_on,
)

GIB = 1024**3


@pytest.mark.parametrize(
    ("name", "memory_gib", "gpus", "tokens"),
    [
        ("A10", 22.05, 1, 2048),
        ("A100", 79.15, 1, 2048),
        ("NVIDIA A100-SXM4-80GB", 79.15, 4, 2048),
        ("H100", 79.1, 1, 8192),
        ("H100", 79.1, 4, 8192),
        ("H200", 139.8, 1, 8192),
        ("B200", 178.35, 1, 16_384),
        ("MI300X", 191.98, 1, 16_384),
        ("L40S", 44.4, 1, 2048),
        ("unheard of", 0, 1, 2048),
        ("CPU", 200, 1, 2048),
        ("cpu", 200, 2, 4096),
    ],
)
def test_the_budget_follows_the_memory_of_one_accelerator(
    name: str, memory_gib: float, gpus: int, tokens: int
) -> None:
    assert default_batched_tokens(name, memory_gib * GIB, gpus=gpus) == tokens


def test_limits_of_memory_belong_to_the_larger_budget() -> None:
    assert default_batched_tokens("H100", 70 * GIB) == 8192
    assert default_batched_tokens("H100", 70 * GIB - 1) == 2048
    assert default_batched_tokens("B200", 160 * GIB) == 16_384
    assert default_batched_tokens("B200", 160 * GIB - 1) == 8192
    assert default_batched_tokens("A100", 160 * GIB) == 16_384, "only below 160 GiB is an A100 an exception"


@pytest.mark.parametrize(
    ("accelerator", "gpus", "expected"),
    [
        ("A10", 1, (256, 2048, True)),
        ("A100", 4, (256, 2048, True)),
        ("NVIDIA H100 80GB HBM3", 1, (1024, 8192, True)),
        ("H200", 2, (1024, 8192, True)),
        ("B200", 1, (1024, 16_384, True)),
        ("unheard of", 1, (256, 2048, True)),
        ("CPU", 1, (128, 2048, False)),
        ("cpu", 2, (256, 4096, False)),
    ],
)
def test_defaults_follow_the_accelerator(
    accelerator: str, gpus: int, expected: tuple[int, int, bool]
) -> None:
    assert defaults_on(accelerator, gpus=gpus) == Defaults(*expected)


@pytest.mark.parametrize("accelerator", ["A10", "H100", "B200", "unheard of", "CPU"])
def test_a_guess_has_the_defaults_of_its_accelerator(accelerator: str) -> None:
    guess = unmeasured_profile("m", accelerator, context_tokens=8192)
    _seqs_max, *defaults = defaults_on(accelerator)
    assert [guess.batched_tokens_max, guess.async_scheduling] == defaults


def test_a_batch_on_cpus_grows_with_their_workers() -> None:
    assert [default_seqs_max("CPU", 0, gpus=gpus) for gpus in (1, 2, 4)] == [128, 256, 512]


def test_shipped_profiles_have_the_budget_that_vllm_takes_there() -> None:
    for profile in builtin_profiles():
        each_bytes = profile.accelerator_memory_bytes / profile.gpus
        assert profile.batched_tokens_max == default_batched_tokens(
            profile.accelerator, each_bytes, gpus=profile.gpus
        )
