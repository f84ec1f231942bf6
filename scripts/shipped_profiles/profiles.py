"""The shipped profiles, built from the constants."""

from pathlib import Path
from typing import Any, Final

from qlm.rct_estimator.profiles.iteration import IterationTime
from qlm.rct_estimator.profiles.profile import Profile, Source
from scripts.shipped_profiles.hardware import HARDWARE, Hardware
from scripts.shipped_profiles.loading import derived, limits, memory, swaps
from scripts.shipped_profiles.models import MODELS, Shape
from scripts.shipped_profiles.times import iteration_time

FOLDER: Final = Path(__file__).resolve().parents[2] / "rct_estimator/qlm/rct_estimator/profiles/shipped"

ENGINE: Final = "vLLM 0.32 (V1), derived"

WANTED: Final = (
    *((model, name, 1) for model in ("mistral-7b", "llama-3-8b") for name in ("A10", "A100", "H100")),
    ("llama-3-8b", "H200", 1),
    ("vicuna-13b", "A10", 2),
    ("vicuna-13b", "A100", 1),
    ("vicuna-13b", "H100", 1),
    *(("llama-70b", name, gpus) for name in ("A100", "H100") for gpus in (2, 4)),
)
"""Model, accelerator and GPUs of each."""

REQUEST_MS: Final = 7.0
"""Time of a request outside of iterations."""

UNGROUPED: Final = 0.2
"""Least uncertainty of KV read with one query head per KV head, which only the A100 was measured with."""

SEVERAL_GPUS: Final = 0.1
"""Added to the uncertainty of linear layers on several GPUs, whose split products are not measured."""


def file_name(model: str, accelerator: str, gpus: int) -> str:
    return f"{model}-{accelerator.lower()}{f'-x{gpus}' if gpus > 1 else ''}.yaml"


def built_profile(model: str, accelerator: str, gpus: int) -> Profile:
    """Return the profile that its file has to hold."""
    shape, hardware = MODELS[model], HARDWARE[accelerator]
    iteration = iteration_time(shape, hardware, gpus)
    figures = memory(model, shape, hardware, gpus) | limits(hardware) | swaps(model, hardware, gpus)
    numbers: dict[str, Any] = {name: value for name, (value, _) in figures.items()}
    sources = {name: source for name, (_, source) in figures.items()}
    return Profile(
        model=model,
        accelerator=accelerator,
        gpus=gpus,
        engine=ENGINE,
        iteration=iteration,
        async_scheduling=True,
        request_ms=REQUEST_MS,
        sources=time_sources(shape, hardware, gpus, iteration) | sources,
        **numbers,
    )


def time_sources(shape: Shape, hardware: Hardware, gpus: int, iteration: IterationTime) -> dict[str, Source]:
    """Return the sources of the coefficients."""
    floor, slope, kv, square = hardware.uncertainty
    grouped = shape.kv_heads < shape.heads
    return {
        "host_ms": derived(
            "With asynchronous scheduling the host works while the GPU computes; what remains is launching a"
            f" CUDA graph and sampling: {hardware.host_source}.",
            1.0,
        ),
        "request_ms": derived(
            "Clients of vLLM 0.21 on an H100 see first tokens 6 to 9 ms after their iteration ends: HTTP,"
            " tokenising, detokenising. See docs/profile-sources.md.",
            0.5,
        ),
        "linear_ms": derived(
            linear_text(shape, hardware, gpus),
            round(max(floor, slope) + (SEVERAL_GPUS if gpus > 1 else 0), 2),
        ),
        "kv_ms": derived(
            f"{shape.kv_bytes_per_token} bytes per token at"
            f" {hardware.kv_share_grouped if grouped else hardware.kv_share} of"
            f" {hardware.bytes_per_s / 1e9:g} GB/s{per_gpu(gpus)}:"
            f" {hardware.kv_source_grouped if grouped else hardware.kv_source}.",
            kv if grouped else max(kv, UNGROUPED),
        ),
        "sequence_ms": derived(
            f"{hardware.sequence_ms:g} ms of sampling and bookkeeping, and the output projection of one token"
            f" at the share of large products. The first is {hardware.sequence_source}.",
            1.0,
        ),
        "square_ms": derived(
            f"{shape.pair_flops} operations per pair of tokens at {hardware.attention_share} of"
            f" {hardware.flops_per_s / 1e12:g} TFLOPS{per_gpu(gpus)}: {hardware.attention_source}.",
            square,
        ),
    }


def linear_text(shape: Shape, hardware: Hardware, gpus: int) -> str:
    """Return the source of the linear layers."""
    reading = (
        f"Root of the sum of squares of reading and computing. Reading: {shape.read_bytes / 1e9:.4g} GB at"
        f" {hardware.weights_share} of {hardware.bytes_per_s / 1e9:g} GB/s{per_gpu(gpus)}:"
        f" {hardware.weights_source}."
    )
    computing = (
        f" Computing: 2 x {shape.layer_parameters / 1e9:.4g} billion operations per token at"
        f" {hardware.product_share(shape.hidden, gpus)} of {hardware.flops_per_s / 1e12:g}"
        f" TFLOPS{per_gpu(gpus)}:"
        f" {hardware.compute_source}. Added: {hardware.layer_ms:g} ms per layer, from the same fit"
    )
    if gpus == 1:
        return f"{reading}{computing}."
    link = hardware.links[gpus]
    return (
        f"{reading}{computing}, and two all-reduces per layer of {link.fixed_ms:g} ms + bytes /"
        f" {link.bytes_per_s / 1e9:g} GB/s: {link.source}. Split products were"
        " measured with kernels of 2024 only, hence the larger uncertainty."
    )


def per_gpu(gpus: int) -> str:
    return " on each GPU" if gpus > 1 else ""
