"""Duration of an iteration of vLLM V1 on an accelerator, from the constants of both."""

import math
from typing import Final

from qlm.rct_estimator.profiles.iteration import IterationTime
from scripts.shipped_profiles.hardware import Hardware
from scripts.shipped_profiles.models import BYTES, Shape

POINTS: Final = (1, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 8192)
"""Tokens of the points of `linear_ms`."""

DIGITS: Final = 4


def iteration_time(shape: Shape, hardware: Hardware, gpus: int) -> IterationTime:
    """Return the coefficients of that model on so many GPUs, milliseconds."""
    grouped = shape.kv_heads < shape.heads
    kv_share = hardware.kv_share_grouped if grouped else hardware.kv_share
    kv = shape.kv_bytes_per_token / (hardware.bytes_per_s * kv_share * gpus)
    output = 2 * shape.output_parameters / (hardware.flops(shape.hidden, gpus) * gpus)
    square = shape.pair_flops / (hardware.flops_per_s * hardware.attention_share * gpus)
    return IterationTime(
        host_ms=hardware.host_ms,
        linear_ms=tuple((n, rounded(linear_ms(shape, hardware, gpus, n))) for n in POINTS),
        kv_ms=rounded(1e3 * kv),
        sequence_ms=rounded(hardware.sequence_ms + 1e3 * output),
        square_ms=rounded(1e3 * square),
    )


def linear_ms(shape: Shape, hardware: Hardware, gpus: int, tokens: int) -> float:
    """Return the time of all that grows with the tokens, reading the weights included.

    Reading and computing overlap: the root of the sum of squares lies within 5 % of what Vidur measured
    between 1 and 4096 tokens on the A100, and within 18 % on the H100, where 256 tokens are slowest.
    """
    read_s = shape.read_bytes / (hardware.bytes_per_s * hardware.weights_share * gpus)
    compute_s = slope_s(shape, hardware, gpus) * tokens
    return 1e3 * math.hypot(read_s, compute_s) + fixed_ms(shape, hardware, gpus, tokens)


def slope_s(shape: Shape, hardware: Hardware, gpus: int) -> float:
    """Return the time to compute the linear layers of a token, seconds."""
    return 2 * shape.layer_parameters / (hardware.flops(shape.hidden, gpus) * gpus)


def fixed_ms(shape: Shape, hardware: Hardware, gpus: int, tokens: int) -> float:
    """Return the time of layers beside their products, and of two all-reduces each."""
    layers = shape.layers * hardware.layer_ms
    if gpus == 1:
        return layers
    link = hardware.links[gpus]
    message = BYTES * shape.hidden * tokens
    return layers + 2 * shape.layers * (link.fixed_ms + 1e3 * message / link.bytes_per_s)


def rounded(value: float) -> float:
    """Return the value with four digits that count."""
    return float(f"{value:.{DIGITS}g}")
