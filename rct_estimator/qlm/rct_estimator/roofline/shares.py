"""Shares of an accelerator's peaks that engines reach, fitted to published measurements.

Linear layers: fitted to the 748 rows that Vidur measured of seven dense models (7B to 72B) on 1 to 8 A100,
A40 and H100, with 1 to 4096 tokens, by least squares of the relative error
(https://github.com/microsoft/vidur/tree/41ab8ab15cd6217284b025750fc6b81364d359e6/data/profiling).
With the values of an accelerator the mean error of its rows is 3 to 4 % (90th percentile 8 %, largest 22 %);
with those of `OTHERS`, 5 % (10 %, 27 %).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from qlm.rct_estimator.profiles.accelerators import Accelerator


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Behaviour of layers on an accelerator.

    Attributes:
        layer_us: Time of a layer that no peak explains: small kernels, their starts and ends.
        bandwidth: Share of the peak bandwidth at which weights are read.
        flops: Share of the peak of matrix products.
        kv_grouped: Share of the peak bandwidth at which attention reads the KV cache, with several query
            heads per KV head.
        pair_flops: Share of the peak that attention of prompts reaches.
        uncertainty: Relative error of times made from them.
        source: Where those of linear layers come from.
    """

    layer_us: float
    bandwidth: float
    flops: float
    kv_grouped: float = 0.7
    pair_flops: float = 0.45
    uncertainty: float
    source: str


_VIDUR: Final = "fitted to the linear layers that Vidur measured"

OTHERS: Final = Shares(
    layer_us=34.0, bandwidth=0.79, flops=0.71, uncertainty=0.25, source=f"{_VIDUR} on A100, A40 and H100"
)
"""Accelerators that no measurement covers."""

_MEASURED: Final[Mapping[str, Shares]] = {
    "A100": Shares(layer_us=42.0, bandwidth=0.78, flops=0.70, uncertainty=0.15, source=f"{_VIDUR} on A100"),
    "H100": Shares(
        layer_us=34.0,
        bandwidth=0.87,
        flops=0.70,
        kv_grouped=0.96,
        pair_flops=0.73,
        uncertainty=0.15,
        source=f"{_VIDUR} on H100",
    ),
    "A40": Shares(layer_us=26.0, bandwidth=0.76, flops=0.74, uncertainty=0.15, source=f"{_VIDUR} on A40"),
    "RTX-4090": Shares(
        layer_us=34.0,
        bandwidth=0.95,
        flops=1.0,
        uncertainty=0.2,
        source="Llama-3.1-8B measured on it: 16.7 ms per decode of one sequence, 94.5 ms per 1024 tokens "
        "of a prompt; its clock exceeds the nominal one (https://github.com/casys-kaist/LLMServingSim)",
    ),
}
_ALIKE: Final[Mapping[str, str]] = {"A100-40GB": "A100", "H100-PCIe": "H100", "H200": "H100"}
"""Accelerators of the same architecture as a measured one."""


def shares_of(accelerator: Accelerator) -> Shares:
    """Return the shares that engines reach on an accelerator."""
    name = accelerator.name
    return _MEASURED.get(_ALIKE.get(name, name), OTHERS)


KNEE: Final = 2.4
"""Sharpness of the kink between reading weights and computing: p of the p-norm of both times; of the fit."""

TRAFFIC_VECTORS: Final = 18
"""Hidden states that each token reads and writes per layer beside the weights; of the fit."""

EXPERT_LAYER_US: Final = 30.0
"""Time per layer of experts for choosing them and sorting tokens by them. An estimate: five more kernels."""

EXPERTS_UNCERTAINTY: Final = 0.35
"""No measurement of a model with experts went into the shares."""
QUANTIZED_UNCERTAINTY: Final = 0.3
"""No measurement of a quantized model went into the shares."""

KV_BANDWIDTH: Final = 0.9
KV_BANDWIDTH_SOURCE: Final = (
    "growth of the time per token with context on the A100: 0.85 to 0.95 of the peak for Llama-2-7B and 13B "
    "(https://github.com/InternLM/lmdeploy/blob/3e391df4/docs/en/benchmark/a100_fp16.md), 0.6 to 0.75 with "
    "several query heads per KV head "
    "(https://github.com/argonne-lcf/LLM-Inference-Bench/blob/4211f5d4/Plots/All_results.csv); 0.96 with "
    "several on an H100 under vLLM 0.32 (docs/profile-sources.md)"
)
"""Share of the peak bandwidth at which attention reads the KV cache, with one query head per KV head; and the
source of this and of `Shares.kv_grouped`."""

KV_UNCERTAINTY: Final = 0.2
"""Relative error of the time to read a KV cache of 16-bit numbers; no measurement covers others."""

READ_FLOPS: Final = 0.45
PAIR_FLOPS_SOURCE: Final = (
    "causal FlashAttention-2 on 1000 to 2000 tokens on the A100: 0.4 to 0.5 of the peak; 0.73 on an H100 "
    "under vLLM 0.32 (docs/profile-sources.md)"
)
PAIR_FLOPS_ADDRESS: Final = "https://arxiv.org/abs/2307.08691"
"""Source of `Shares.pair_flops`."""

REDUCE_US: Final = 20.0
REDUCE_BANDWIDTH: Final = 0.58
REDUCE_UNCERTAINTY: Final = 0.5
"""Time of an all-reduce of few bytes, and share of the link that large ones reach. The share is fitted to
what Vidur measured of NCCL on 2 to 8 A100 and H100 with NVLink (mean error 28 %, 90th percentile 50 %). Few
bytes take 33 us there, 15 to 22 in iterations of LMDeploy, and 6 to 14 in vLLM's own kernel over NVLink
(https://github.com/vllm-project/vllm/pull/24532); over PCIe about 30. For PCIe the same is taken."""

HOST_MS: Final = 0.3
"""Time of an iteration on the host that asynchronous scheduling does not hide; without it, 1 to 3 ms."""
REQUEST_MS: Final = 7.0
"""Time of a request outside of iterations, as in the shipped profiles."""
SEQUENCE_MS: Final = 0.005
"""Time per sequence of sampling and bookkeeping: 0.0036 ms on an H100 under vLLM 0.32, others are slower."""

MEMORY: Final = 0.92
ACTIVATION_BYTES: Final = 1_500_000_000
ACTIVATION_BYTES_LARGE: Final = 2_920_000_000
"""Share of the memory that vLLM 0.32 uses, and bytes per GPU for activations and CUDA graphs, as in the
shipped profiles. With the first, the KV cache of Llama-2-7B on 80 GB is 1 % larger than vLLM 0.11 reports.
The second is what vLLM 0.32 kept on an H100 for batches of 1024 sequences and 8192 tokens."""

HOST_LINK: Final = 2 / 3
HOST_LINK_GROWTH: Final = 0.527
"""Share of the host link that waking from sleep reaches on one GPU (61 GB in 2.87 s on one A100), and the
power of the number of GPUs with which it grows (235 GB in 5.4 s on four)."""
SLEEP_MODE: Final = "https://blog.vllm.ai/2025/10/26/sleep-mode.html"

WAKE_S: Final = 0.15
RELOAD_S: Final = 0.47
RELOAD_BYTES_PER_S: Final = 3.93e9
COLD_S: Final = 36.0
COLD_BYTES_PER_S: Final = 2e9
"""Times of waking, reloading and starting without weights, and rates of reading weights, as in the shipped
profiles."""
