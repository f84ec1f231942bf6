"""Settings and facts that a profile states: what the engine says, what was given, or the usual."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.profiles.token_budget import Defaults

if TYPE_CHECKING:
    from qlm.cli.profiling.identify import Described

SETTINGS: Final[Mapping[str, str]] = {
    "seqs_max": "--max-num-seqs",
    "batched_tokens_max": "--max-num-batched-tokens",
    "async_scheduling": "--async-scheduling",
}
"""Flags, by key of the profile."""

FACTS: Final[Mapping[str, str]] = {
    "weights_bytes": "bytes of the weights, over all GPUs",
    "kv_bytes_per_token": "bytes of KV cache of one token, over all GPUs",
    "accelerator_memory_bytes": "memory of all its GPUs together, in bytes",
    "swap_warm_s": "seconds to wake from host memory",
    "swap_reload_s": "seconds to wake from storage",
    "swap_cold_s": "seconds to start from nothing",
    "unload_s": "seconds to go to sleep",
    "host_bandwidth_bytes_per_s": "bytes per second between host and accelerator memory",
}
"""Facts that an engine's API does not expose: key in the profile, and the question at the prompt."""


class Settings(NamedTuple):
    """Settings of an engine.

    Attributes:
        seqs_max: Requests in the batch at most.
        batched_tokens_max: Tokens computed in one iteration at most.
        async_scheduling: It puts the next iteration together before the present one ends.
        reported: Those that the engine reported, by key.
        assumed: Those that were neither reported nor given.
    """

    seqs_max: int
    batched_tokens_max: int
    async_scheduling: bool
    reported: frozenset[str] = frozenset()
    assumed: frozenset[str] = frozenset()


def choose_settings(
    engine: "Described", given: Mapping[str, Any], defaults: Defaults
) -> tuple[Settings, list[str]]:
    """Choose the settings, and return a line for each that had to be assumed.

    Args:
        engine: What the engine says.
        given: What was given, by key; None for nothing.
        defaults: What vLLM takes on the accelerator.

    Raises:
        InvalidValueError: What was given is not what the engine reports.
    """
    chosen, lines = {}, []
    for name, flag in SETTINGS.items():
        reported, stated = getattr(engine, name), given[name]
        if reported is not None and stated is not None and stated != reported:
            raise InvalidValueError(flag, stated, f"{reported}, which the engine reports")
        chosen[name] = next(each for each in (reported, stated, getattr(defaults, name)) if each is not None)
        if reported is None and stated is None:
            lines.append(
                f"assumed: {flag} {chosen[name]}, vLLM's default there; "
                "the engine does not say (VLLM_SERVER_DEV_MODE=1)"
            )
    reported_names = frozenset(name for name in SETTINGS if getattr(engine, name) is not None)
    assumed = frozenset(name for name in SETTINGS if given[name] is None) - reported_names
    return Settings(**chosen, reported=reported_names, assumed=assumed), lines
