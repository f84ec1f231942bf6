"""Constants of the accelerators: figures of data sheets, and the shares of them that engines reach."""

from dataclasses import dataclass, replace
from typing import Final

from qlm.rct_estimator.profiles.accelerators import accelerator_of
from qlm.rct_estimator.roofline.shares import ACTIVATION_BYTES, ACTIVATION_BYTES_LARGE, shares_of

WIDE: Final = 5120
"""Width of hidden states from which large products count as wide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """All-reduce of a message between the GPUs of an engine: fixed time and bandwidth.

    Attributes:
        fixed_ms: Time of the smallest message.
        bytes_per_s: Bytes of the message per further second.
        source: Where that comes from.
    """

    fixed_ms: float
    bytes_per_s: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """An accelerator under vLLM V1.

    Attributes:
        name: Name in profiles.
        bytes_per_s: Bandwidth of the data sheet.
        flops_per_s: Dense 16-bit operations of the data sheet.
        memory_bytes: Memory that CUDA reports.
        memory_source: Where that comes from.
        weights_share: Share of the bandwidth at which weights are read.
        weights_source: Where that comes from.
        layer_ms: Time of a layer that grows neither with weights nor with tokens.
        compute_share: Share of the operations in large products, hidden states narrower than `WIDE`.
        compute_shares_wide: The same for wider ones, by number of GPUs.
        compute_source: Where that comes from.
        attention_share: Share of the operations in the attention of prompts.
        attention_source: Where that comes from.
        kv_share: Share of the bandwidth at which KV is read, with one query head per KV head.
        kv_share_grouped: The same with several.
        kv_source: Where the first comes from.
        kv_source_grouped: Where the second comes from.
        host_ms: Time per iteration that neither hides the other.
        host_source: Where that comes from.
        sequence_ms: Time per sequence beside its output projection.
        sequence_source: Where that comes from.
        reserved_bytes: Memory of a GPU for activations and CUDA graphs.
        reserved_source: Where that comes from.
        links: All-reduce by number of GPUs.
        uncertainty: Of times of one GPU: floor, slope, KV, square.
    """

    name: str
    bytes_per_s: float
    flops_per_s: float
    memory_bytes: int
    memory_source: str
    weights_share: float
    weights_source: str
    layer_ms: float
    compute_share: float
    compute_shares_wide: dict[int, float]
    compute_source: str
    attention_share: float
    attention_source: str
    kv_share: float
    kv_share_grouped: float
    kv_source: str
    kv_source_grouped: str
    host_ms: float
    host_source: str
    sequence_ms: float
    sequence_source: str
    reserved_bytes: int
    reserved_source: str
    links: dict[int, Link]
    uncertainty: tuple[float, float, float, float]

    def flops(self, hidden: int, gpus: int) -> float:
        """Return the operations per second of one GPU in large products of that width."""
        return self.flops_per_s * self.product_share(hidden, gpus)

    def product_share(self, hidden: int, gpus: int) -> float:
        """Return the share of the data sheet that large products of that width reach."""
        return self.compute_share if hidden < WIDE else self.compute_shares_wide[gpus]


VIDUR: Final = (
    "https://github.com/microsoft/vidur/tree/41ab8ab15cd6217284b025750fc6b81364d359e6/data/profiling"
)
ARGONNE: Final = "https://github.com/argonne-lcf/LLM-Inference-Bench/blob/4211f5d4/Plots/All_results.csv"
A6000_V1: Final = (
    "https://ld-singh.github.io/ai-factory-ops-lab/portfolio-lab/06-validation-reports/"
    "inference-benchmark-report/"
)
OWN_H100: Final = (
    "measured with Llama-3-8B, random weights, under vLLM 0.32.0 on one H100 80GB HBM3;"
    " see docs/profile-sources.md"
)
GRAPHS_H200: Final = (
    "an estimate: graphs of Llama-3.1-8B took 0.73 GB on a slice (MIG) of an H200."
    " https://github.com/ssaketh-ch/llama31b-benchmark/blob/72703baa/results/accuracy/acc_baseline/run_1/run.log"
)
HOST_ASSUMED: Final = "an assumption; no measurement separates it from the layers"
SEQUENCE_AS_H100: Final = "an estimate: somewhat more than the 0.0036 ms measured on an H100"
FA2: Final = "https://arxiv.org/abs/2307.08691"
NCCL_A100: Final = "small messages as in vLLM's custom all-reduce, large ones as Vidur's of 4096 tokens"

A10: Final = Hardware(
    name="A10",
    bytes_per_s=600e9,
    flops_per_s=125e12,
    memory_bytes=24_150_000_000,
    memory_source="A10 24GB: 22.5 GiB as the driver reports it.",
    weights_share=0.875,
    weights_source=(
        "the share at which an RTX A6000, the same generation with the same kind of memory, decodes"
        f" Qwen2.5-7B alone in 21.9 ms under vLLM 0.23 ({A6000_V1})"
    ),
    layer_ms=0.02,
    compute_share=0.6,
    compute_shares_wide={2: 0.6},
    compute_source=(
        "the share of the A40, whose linear layers Vidur measured (0.62 to 0.72 from 1024 tokens on), less"
        f" a tenth, since an A10 has half its power ({VIDUR})"
    ),
    attention_share=0.5,
    attention_source=f"the share of the A100 with FlashAttention 2 ({FA2})",
    kv_share=0.9,
    kv_share_grouped=0.7,
    kv_source=f"the share of the A100, from the growth of latency with context ({ARGONNE})",
    kv_source_grouped=f"near the share of the A100, from the growth of latency with context ({ARGONNE})",
    host_ms=0.3,
    host_source=HOST_ASSUMED,
    sequence_ms=0.005,
    sequence_source=SEQUENCE_AS_H100,
    reserved_bytes=ACTIVATION_BYTES,
    reserved_source=GRAPHS_H200,
    links={
        2: Link(
            fixed_ms=0.03,
            bytes_per_s=10e9,
            source="over PCIe, since an A10 has no NVLink; not measured: 0.03 ms and 10 GB/s",
        )
    },
    uncertainty=(0.1, 0.25, 0.25, 0.3),
)

A100: Final = Hardware(
    name="A100",
    bytes_per_s=2039e9,
    flops_per_s=312e12,
    memory_bytes=85_000_000_000,
    memory_source="A100 80GB: 79.15 GiB as the driver reports it.",
    weights_share=0.752,
    weights_source=(
        "least squares over the linear layers of seven models of 7 to 72 billion parameters that Vidur"
        f" measured on one A100 with 1 to 16 tokens (within 1 %; {VIDUR})"
    ),
    layer_ms=0.027,
    compute_share=0.65,
    compute_shares_wide={1: 0.71, 2: 0.7, 4: 0.68},
    compute_source=f"what Vidur's linear layers reach on the A100 with 2048 and 4096 tokens ({VIDUR})",
    attention_share=0.5,
    attention_source=f"FlashAttention 2, head width 128, causal, on an A100: 0.6 ({FA2}), less chunking",
    kv_share=0.9,
    kv_share_grouped=0.65,
    kv_source=(
        "growth of latency with context, 128 to 2048 tokens, of TensorRT-LLM and vLLM on an A100 40GB:"
        f" 0.90 and 0.96 for Llama-2-7B ({ARGONNE})"
    ),
    kv_source_grouped=(
        "growth of latency with context, 128 to 2048 tokens, of TensorRT-LLM and vLLM on an A100 40GB:"
        f" 0.58 and 0.60 in kernels of 2024 ({ARGONNE})"
    ),
    host_ms=0.2,
    host_source=HOST_ASSUMED,
    sequence_ms=0.005,
    sequence_source=SEQUENCE_AS_H100,
    reserved_bytes=ACTIVATION_BYTES,
    reserved_source=GRAPHS_H200,
    links={
        2: Link(fixed_ms=0.008, bytes_per_s=175e9, source=f"{NCCL_A100} ({VIDUR})"),
        4: Link(fixed_ms=0.010, bytes_per_s=111e9, source=f"{NCCL_A100} ({VIDUR})"),
    },
    uncertainty=(0.07, 0.1, 0.2, 0.2),
)

H100: Final = Hardware(
    name="H100",
    bytes_per_s=3350e9,
    flops_per_s=989.4e12,
    memory_bytes=84_930_000_000,
    memory_source="H100 80GB SXM: 79.1 GiB as CUDA reports it.",
    weights_share=0.875,
    weights_source=(
        "least squares over the linear layers of five models of 7 to 72 billion parameters that Vidur"
        f" measured on one H100 with 1 to 16 tokens (within 1 %; {VIDUR})"
    ),
    layer_ms=0.0387,
    compute_share=0.645,
    compute_shares_wide={1: 0.645, 2: 0.64, 4: 0.62},
    compute_source=f"what Vidur's linear layers reach on the H100 with 2048 and 4096 tokens ({VIDUR})",
    attention_share=shares_of(accelerator_of("H100")).pair_flops,
    attention_source=f"prompts of up to 4000 tokens, {OWN_H100}",
    kv_share=0.9,
    kv_share_grouped=shares_of(accelerator_of("H100")).kv_grouped,
    kv_source="an estimate: the share of the A100",
    kv_source_grouped=OWN_H100,
    host_ms=0.17,
    host_source=f"the rest of the iterations {OWN_H100}",
    sequence_ms=0.0036,
    sequence_source=f"growth with the batch, {OWN_H100}",
    reserved_bytes=ACTIVATION_BYTES_LARGE,
    reserved_source=f"what vLLM kept, {OWN_H100}",
    links={
        2: Link(
            fixed_ms=0.006,
            bytes_per_s=190e9,
            source=(
                "small messages from https://github.com/vllm-project/vllm/pull/24111, large ones from Vidur's"
                f" all-reduce of 4096 tokens ({VIDUR})"
            ),
        ),
        4: Link(
            fixed_ms=0.007,
            bytes_per_s=210e9,
            source=(
                "0.010 ms for 0.5 MB, 0.014 ms for 1 MB, 0.023 ms for 2 MB"
                " (https://github.com/vllm-project/vllm/pull/24532), 0.32 ms for 67 MB"
                f" ({VIDUR})"
            ),
        ),
    },
    uncertainty=(0.05, 0.1, 0.15, 0.2),
)

H200: Final = replace(
    H100,
    name="H200",
    bytes_per_s=4800e9,
    memory_bytes=150_110_000_000,
    memory_source="H200 141GB SXM: 139.8 GiB as CUDA reports it.",
    weights_source=f"the share of the H100, the same chip with other memory: {H100.weights_source}",
    kv_source=H100.kv_source,
    kv_source_grouped=f"the share of the H100, the same chip with other memory: {H100.kv_source_grouped}",
    uncertainty=(0.1, 0.1, 0.15, 0.2),
)

HARDWARE: Final = {each.name: each for each in (A10, A100, H100, H200)}
