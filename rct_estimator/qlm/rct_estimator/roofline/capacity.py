"""Room for KV, limits of a batch and swap times, by the rules of vLLM and of the shipped profiles."""

from dataclasses import dataclass
from typing import Final

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.profiles.accelerators import Accelerator
from qlm.rct_estimator.profiles.token_budget import default_batched_tokens, default_seqs_max
from qlm.rct_estimator.roofline import shares
from qlm.rct_estimator.roofline.architecture import Architecture

BLOCK_TOKENS: Final = 16
"""vLLM's block size on CUDA."""

_GPUS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """vLLM's `--max-num-seqs` and `--max-num-batched-tokens` where they are not set."""

    seqs_max: int
    batched_tokens_max: int


def batch_limits(accelerator: Accelerator, context_tokens: int) -> BatchLimits:
    """Return the limits that the API server of vLLM 0.32 chooses by memory and name of the accelerator."""
    tokens = default_batched_tokens(accelerator.name, accelerator.memory_bytes)
    seqs = default_seqs_max(accelerator.name, accelerator.memory_bytes)
    return BatchLimits(seqs, min(tokens, seqs * context_tokens))


def check_gpus(model: Architecture, gpus: int) -> None:
    """Refuse a number of GPUs over which vLLM cannot spread the model's heads.

    Raises:
        InvalidValueError: It is one; names those that are none.
    """
    possible = _spreading(model)
    if gpus not in possible:
        listed = ", ".join(map(str, possible))
        expected = f"one of {listed}, over which its {model.attention.heads} attention heads can be spread"
        raise InvalidValueError("gpus", gpus, expected)


def kv_tokens(model: Architecture, accelerator: Accelerator, gpus: int) -> int:
    """Return the tokens of KV cache that fit beside the weights, in whole blocks.

    Raises:
        InvalidValueError: The weights leave no room for a request of 64 tokens; names the GPUs needed.
    """
    tokens = _room(model, accelerator, gpus)
    if tokens < 4 * BLOCK_TOKENS:
        enough = [
            n for n in _spreading(model) if n > gpus and _room(model, accelerator, n) >= 4 * BLOCK_TOKENS
        ]
        size = f"{model.weights_bytes / 1e9:.1f} GB of weights beside which no KV cache fits"
        expected = f"at least {enough[0]} of {accelerator.name} for {size}" if enough else f"less than {size}"
        raise InvalidValueError("gpus", gpus, expected)
    return tokens


def activation_bytes(accelerator: Accelerator) -> int:
    """Return what vLLM keeps of each one's memory for activations and CUDA graphs, by its largest batch."""
    seqs = default_seqs_max(accelerator.name, accelerator.memory_bytes)
    large = seqs > default_seqs_max(accelerator.name, 0)
    return shares.ACTIVATION_BYTES_LARGE if large else shares.ACTIVATION_BYTES


def _spreading(model: Architecture) -> list[int]:
    return [n for n in range(1, _GPUS_MAX + 1) if model.attention.spreads(n)]


def _room(model: Architecture, accelerator: Accelerator, gpus: int) -> int:
    per_gpu = shares.MEMORY * accelerator.memory_bytes - activation_bytes(accelerator)
    tokens = int((per_gpu * gpus - model.weights_bytes) / model.kv_bytes_per_token(gpus))
    return tokens // BLOCK_TOKENS * BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class SwapTimes:
    """Times of swaps, seconds, and the bandwidth behind them."""

    warm_s: float
    reload_s: float
    cold_s: float
    unload_s: float
    host_bandwidth_bytes_per_s: float


def swap_times(weights_bytes: int, accelerator: Accelerator, gpus: int) -> SwapTimes:
    """Return the swap times of weights by the rules of the shipped profiles."""
    link = shares.HOST_LINK * accelerator.host_link_bytes_per_s * gpus**shares.HOST_LINK_GROWTH
    warm_s = shares.WAKE_S + weights_bytes / link
    return SwapTimes(
        warm_s=round(warm_s, 2),
        reload_s=round(shares.RELOAD_S + weights_bytes / shares.RELOAD_BYTES_PER_S, 2),
        cold_s=round(shares.COLD_S + weights_bytes / shares.COLD_BYTES_PER_S, 1),
        unload_s=round(warm_s, 2),
        host_bandwidth_bytes_per_s=float(f"{link:.3g}"),
    )
