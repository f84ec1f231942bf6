"""Profiles shipped with QLM, one file per (model, accelerator, GPUs), and a guess where there is none."""

from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.profiles.file import parse_profile_text
from qlm.rct_estimator.profiles.iteration import IterationTime
from qlm.rct_estimator.profiles.profile import COEFFICIENTS, NUMBERS, Profile, Source, SourceKind
from qlm.rct_estimator.profiles.token_budget import defaults_on


def builtin_profiles() -> tuple[Profile, ...]:
    """Return all shipped profiles, sorted by file name."""
    return _shipped()


@cache
def _shipped() -> tuple[Profile, ...]:
    """Read the shipped profiles, once: parsing them takes half a second."""
    folder = files("qlm.rct_estimator.profiles") / "shipped"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".yaml"))
    return tuple(parse_profile_text((folder / name).read_text("utf-8"), name) for name in names)


def find_profile(profiles: Sequence[Profile], model: str, accelerator: str, gpus: int = 1) -> Profile:
    """Return the profile of a (model, accelerator, GPUs).

    Raises:
        InvalidValueError: There is none; the message lists the known ones.
    """
    for profile in profiles:
        if (profile.model, profile.accelerator, profile.gpus) == (model, accelerator, gpus):
            return profile
    known = ", ".join(f"{p.model} on {p.gpus} x {p.accelerator}" for p in profiles)
    raise InvalidValueError("profile", f"{model} on {gpus} x {accelerator}", f"one of: {known}")


def unmeasured_profile(model: str, accelerator: str, *, context_tokens: int) -> Profile:
    """Return a guessed profile in the range of a 7B model on a data-centre GPU; all sources name it a guess.

    Plans stay sensible with it (longer work takes longer, swaps cost time); its times are off by a factor of
    two and more. `qlm.rct_estimator.roofline` does better where the model's config.json is known. Token
    budget and scheduling are vLLM's defaults on the accelerator: QLM starts engines with the budget of their
    profile.
    """
    text = "a guess, off by a factor of two or more: this model was not measured on this accelerator"
    source = Source(SourceKind.DERIVED, text, 1.0)
    defaults = defaults_on(accelerator)
    return Profile(
        model=model,
        accelerator=accelerator,
        gpus=1,
        engine="any",
        iteration=IterationTime(
            host_ms=1.0,
            linear_ms=((1, 11.0), (64, 12.0), (2048, 165.0)),
            kv_ms=0.00025,
            sequence_ms=0.07,
        ),
        async_scheduling=defaults.async_scheduling,
        kv_bytes_per_token=131072,
        block_tokens=16,
        kv_tokens=max(40_000, context_tokens),
        seqs_max=64,
        batched_tokens_max=defaults.batched_tokens_max,
        context_tokens=context_tokens,
        weights_bytes=15_000_000_000,
        accelerator_memory_bytes=24_000_000_000,
        swap_warm_s=2.0,
        swap_reload_s=10.0,
        swap_cold_s=40.0,
        unload_s=1.0,
        host_bandwidth_bytes_per_s=20_000_000_000.0,
        sources={name: source for name in (*COEFFICIENTS, *NUMBERS)},
    )
