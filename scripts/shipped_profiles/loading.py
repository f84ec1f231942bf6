"""Memory, limits and swap times of the shipped profiles, with their sources."""

from typing import Final

from qlm.rct_estimator.profiles.profile import Source, SourceKind
from qlm.rct_estimator.profiles.token_budget import default_batched_tokens, default_seqs_max
from scripts.shipped_profiles.hardware import Hardware
from scripts.shipped_profiles.models import WEIGHTS_BILLION, Shape

BLOCK_TOKENS: Final = 16
MEMORY_SHARE: Final = 0.92

SLEEP_MODE: Final = "https://blog.vllm.ai/2025/10/26/sleep-mode.html"
GEN_5: Final = "Twice the A100's, since PCIe Gen5 has twice the rate of Gen4: "

Figures = dict[str, tuple[float, Source]]


def specified(text: str) -> Source:
    return Source(SourceKind.SPECIFIED, text)


def derived(text: str, uncertainty: float) -> Source:
    return Source(SourceKind.DERIVED, text, uncertainty)


def limits(hardware: Hardware) -> Figures:
    """Return the limits on a batch that vLLM's API server sets on this accelerator."""
    tokens = default_batched_tokens(hardware.name, hardware.memory_bytes)
    seqs = default_seqs_max(hardware.name, hardware.memory_bytes)
    large = seqs > default_seqs_max(hardware.name, 0)
    where = "of 70 GiB and more other than the A100" if large else "below 70 GiB and on the A100"
    return {
        "seqs_max": (seqs, specified(f"vLLM's default --max-num-seqs of the API server on GPUs {where}.")),
        "batched_tokens_max": (
            tokens,
            specified(f"vLLM's default --max-num-batched-tokens of the API server on GPUs {where}."),
        ),
    }


def memory(model: str, shape: Shape, hardware: Hardware, gpus: int) -> Figures:
    """Return sizes of weights, memory and KV cache."""
    weights, billion = weights_bytes(model), WEIGHTS_BILLION[model]
    total = gpus * hardware.memory_bytes
    kv_bytes = MEMORY_SHARE * total - weights - gpus * hardware.reserved_bytes
    blocks = int(kv_bytes / shape.kv_bytes_per_token / BLOCK_TOKENS)
    per_token = (
        f"{shape.layers} layers x {shape.kv_heads} KV heads x {shape.head_dim} x 2 (K and V) x 2 bytes"
        " (16-bit), from the model's configuration."
    )
    kv_text = (
        f"(0.92 x memory - weights - {hardware.reserved_bytes / 1e9:g} GB of activations and CUDA graphs per"
        " GPU) / bytes per token, rounded down to whole blocks; 0.92 is vLLM's default"
        f" --gpu-memory-utilization. The {hardware.reserved_bytes / 1e9:g} GB are {hardware.reserved_source}"
    )
    times = f"{gpus} x " if gpus > 1 else ""
    return {
        "kv_bytes_per_token": (shape.kv_bytes_per_token, derived(per_token, 0.0)),
        "block_tokens": (BLOCK_TOKENS, specified("vLLM's default block size on CUDA.")),
        "kv_tokens": (BLOCK_TOKENS * blocks, derived(kv_text, kv_uncertainty(kv_bytes, gpus))),
        "context_tokens": (shape.context_tokens, specified(shape.context_source)),
        "weights_bytes": (weights, specified(f"{round(billion, 2)} billion parameters of 2 bytes.")),
        "accelerator_memory_bytes": (total, specified(times + hardware.memory_source)),
    }


def weights_bytes(model: str) -> int:
    return round(2e9 * WEIGHTS_BILLION[model])


def kv_uncertainty(kv_bytes: float, gpus: int) -> float:
    """Return the share of the KV cache that one more or less GB per GPU changes."""
    return round(gpus * 1e9 / kv_bytes, 2)


def swaps(model: str, hardware: Hardware, gpus: int) -> Figures:
    """Return swap times and the bandwidth to host memory."""
    weights = weights_bytes(model)
    bandwidth, bandwidth_source, start_s, warm_source = host_link(hardware.name, gpus)
    warm = round(start_s + weights / bandwidth, 2)
    reload_text = (
        "0.47 s + weights / 3.93 GB/s: the line through vLLM's figures for waking from level 2 on the A100,"
        " 0.85 s for 1.5 GB and 2.58 s for 8.3 GB; storage, not the accelerator, sets it. " + SLEEP_MODE
    )
    cold_text = (
        "36 s + weights / 2 GB/s: between vLLM's cold starts on the A4000 (21 s for 1.5 GB, 46 s for 8.3 GB),"
        " one A100 (37.6 s for 1.5 GB, 58.1 s for 8.3 GB, 47.4 s for 61 GB) and four (97.7 s for 235 GB). "
        + SLEEP_MODE
    )
    unload_text = "Not published. Taken as long as waking: the same bytes cross the same bus the other way."
    return {
        "swap_warm_s": (warm, warm_source),
        "swap_reload_s": (round(0.47 + weights / 3.93e9, 2), derived(reload_text, 0.5)),
        "swap_cold_s": (round(36 + weights / 2e9, 1), derived(cold_text, 0.5)),
        "unload_s": (warm, derived(unload_text, 0.5)),
        "host_bandwidth_bytes_per_s": (bandwidth, bandwidth_source),
    }


def host_link(name: str, gpus: int) -> tuple[float, Source, float, Source]:
    """Return bandwidth to host memory over all GPUs, its source, time to start waking, and its source."""
    if name == "A10":
        text = "8.3 GB woken in 0.80 s on an A4000, the same bus (PCIe Gen4 x16); fixed costs included"
        more = "; two GPUs copy their halves at once" if gpus > 1 else ""
        warm = (
            "0.1 s + weights / host bandwidth: vLLM's sleep-mode figures, 0.10 s for 1.5 GB and 0.80 s for"
            f" 8.3 GB on an A4000, also PCIe Gen4 x16. {SLEEP_MODE}"
        )
        uncertainty = 0.4 if gpus > 1 else 0.25
        source = derived(f"{text}{more}. {SLEEP_MODE}", uncertainty)
        return gpus * 10e9, source, 0.1, derived(warm, uncertainty)
    per_machine = {1: 21e9, 2: 30.2e9, 4: 43.6e9}[gpus]
    text = {
        1: "61 GB woken in 2.87 s on one A100.",
        2: "15.1 GB/s per GPU: the geometric mean of vLLM's wake-ups on one A100 (61 GB in 2.87 s) and on"
        " four at once (235 GB in 5.4 s, 10.9 GB/s per GPU).",
        4: "235 GB woken in 5.4 s on four A100, 10.9 GB/s per GPU.",
    }[gpus]
    uncertainty = {1: 0.2, 2: 0.35, 4: 0.25}[gpus]
    warm = (
        "0.15 s + weights / host bandwidth: vLLM's sleep-mode figures, 0.26 s for 1.5 GB and 2.87 s for 61"
        f" GB on one A100, 5.4 s for 235 GB on four. {SLEEP_MODE}"
    )
    warm_uncertainty = {1: 0.25, 2: 0.35, 4: 0.25}[gpus]
    if name in ("H100", "H200"):
        per_machine, text, uncertainty = 2 * per_machine, GEN_5 + text, round(uncertainty + 0.2, 2)
        warm_uncertainty = {1: 0.4, 2: 0.55, 4: 0.45}[gpus]
    return per_machine, derived(f"{text} {SLEEP_MODE}", uncertainty), 0.15, derived(warm, warm_uncertainty)
