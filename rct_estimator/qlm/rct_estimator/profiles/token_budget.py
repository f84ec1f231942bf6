"""Token budget of an iteration, size of a batch, and scheduling that vLLM takes by default."""

from typing import Final, NamedTuple

from qlm.rct_estimator.profiles.accelerators import find_accelerator

_GIB: Final = 1024**3
_SMALL: Final = 2048
_LARGE: Final = 8192
_LARGEST: Final = 16_384
_SEQS_CPU: Final = 128
_SEQS_SMALL: Final = 256
_SEQS_LARGE: Final = 1024
_LARGE_FROM_BYTES: Final = 70 * _GIB
_LARGEST_FROM_BYTES: Final = 160 * _GIB


def default_batched_tokens(name: str, memory_bytes: float, *, gpus: int = 1) -> int:
    """Return `--max-num-batched-tokens` of `vllm serve` without that argument, for text models.

    The rule is `EngineArgs.get_batch_defaults` of vLLM 0.32: it depends on the memory of one accelerator, and
    an A100 gets the small budget whatever its memory.

    Args:
        name: Kind of accelerator, as in profiles, or the name that its driver reports; `CPU` for none.
        memory_bytes: Memory of one accelerator; 0 if unknown, which vLLM treats as small.
        gpus: Accelerators, or CPU workers, that the engine spans.
    """
    if name.upper() == "CPU":
        return _SMALL * gpus
    if memory_bytes >= _LARGEST_FROM_BYTES:
        return _LARGEST
    if memory_bytes >= _LARGE_FROM_BYTES and "a100" not in name.lower():
        return _LARGE
    return _SMALL


def default_seqs_max(name: str, memory_bytes: float, *, gpus: int = 1) -> int:
    """Return `--max-num-seqs` of `vllm serve` without that argument; see `default_batched_tokens`."""
    if name.upper() == "CPU":
        return _SEQS_CPU * gpus
    return _SEQS_SMALL if default_batched_tokens(name, memory_bytes) == _SMALL else _SEQS_LARGE


class Defaults(NamedTuple):
    """What `vllm serve` takes without arguments.

    Attributes:
        seqs_max: `--max-num-seqs`.
        batched_tokens_max: `--max-num-batched-tokens`, for models whose context is not tiny.
        async_scheduling: `--async-scheduling`.
    """

    seqs_max: int
    batched_tokens_max: int
    async_scheduling: bool


def defaults_on(accelerator: str, *, gpus: int = 1) -> Defaults:
    """Return the defaults on an accelerator; one without a data sheet here counts as a small one."""
    known = find_accelerator(accelerator)
    name, memory_bytes = (known.name, known.memory_bytes) if known else (accelerator, 0)
    return Defaults(
        seqs_max=default_seqs_max(name, memory_bytes, gpus=gpus),
        batched_tokens_max=default_batched_tokens(name, memory_bytes, gpus=gpus),
        async_scheduling=name.upper() != "CPU",
    )
