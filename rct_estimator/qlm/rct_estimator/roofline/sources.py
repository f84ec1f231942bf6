"""Source of each number of a roofline profile, with its uncertainty."""

from collections.abc import Mapping

from qlm.rct_estimator.profiles.profile import Source, SourceKind
from qlm.rct_estimator.roofline import shares
from qlm.rct_estimator.roofline.capacity import activation_bytes
from qlm.rct_estimator.roofline.timing import TOKENS, Roofline


def sources(roofline: Roofline) -> Mapping[str, Source]:
    """Return the sources of all numbers, by their names in the file."""
    return {**_of_iteration(roofline), **_of_capacity(roofline), **_of_swaps()}


def uncertainty(roofline: Roofline) -> float:
    """Return the relative error that the time of linear layers, with all-reduces, may well have."""
    model, share = roofline.model, shares.shares_of(roofline.accelerator)
    of_experts = shares.EXPERTS_UNCERTAINTY if model.experts else 0.0
    quantized = any(b != 16 for b in (model.bits.attention, model.bits.linear, model.bits.expert))
    of_layers = max(share.uncertainty, of_experts, shares.QUANTIZED_UNCERTAINTY if quantized else 0.0)
    of_reduces = max(roofline.reduce_ms(tokens) / roofline.linear_ms(tokens) for tokens in TOKENS)
    return min(1.0, round(of_layers + shares.REDUCE_UNCERTAINTY * of_reduces, 2))


def _of_iteration(roofline: Roofline) -> dict[str, Source]:
    pair_share = shares.shares_of(roofline.accelerator).pair_flops
    pairs = f"Attention's operations at {pair_share:.0%} of the peak: {shares.PAIR_FLOPS_SOURCE}."
    return {
        "host_ms": _derived(
            "Estimated: engines add 1 to 3 ms, most of which asynchronous scheduling hides.", 0.5
        ),
        "request_ms": _derived(
            "As in the shipped profiles: first tokens of vLLM 0.21 on an H100 come 6 to 9 ms later than their"
            " iteration.",
            0.5,
        ),
        "linear_ms": _derived(_linear(roofline), uncertainty(roofline)),
        "kv_ms": _derived(
            f"Bytes of KV per token at {roofline.kv_share:.0%} of the peak bandwidth: "
            f"{shares.KV_BANDWIDTH_SOURCE}.",
            shares.KV_UNCERTAINTY if roofline.model.bits.kv == 16 else shares.QUANTIZED_UNCERTAINTY,
        ),
        "sequence_ms": _derived(
            f"{shares.SEQUENCE_MS} ms of sampling and bookkeeping, estimated, and the output embedding.", 0.5
        ),
        "square_ms": _derived(f"{pairs} {shares.PAIR_FLOPS_ADDRESS}", 0.3),
    }


def _linear(roofline: Roofline) -> str:
    share = shares.shares_of(roofline.accelerator)
    text = (
        f"Roofline: weights read at {share.bandwidth:.0%} of the peak bandwidth "
        f"({roofline.floor_ms:.3g} ms for one token), products at {share.flops:.0%} of the peak "
        f"({roofline.slope_ms:.3g} ms per token), "
        f"{share.layer_us:.0f} us per layer; {share.source}."
    )
    if roofline.model.experts:
        text += " Of the experts those are read that some token uses, if all are as likely."
    if roofline.gpus > 1:
        text += (
            f" With {roofline.reduce_ms(1):.2g} ms of all-reduces for one token, "
            f"{roofline.reduce_ms(2048):.3g} ms for 2048, each within {shares.REDUCE_UNCERTAINTY:.0%}."
        )
    return f"{text} {roofline.accelerator.source}"


def _of_capacity(roofline: Roofline) -> dict[str, Source]:
    model = roofline.model
    rule = "vLLM's rule for memory and name of the accelerator (get_batch_defaults of vLLM 0.32)."
    kept = activation_bytes(roofline.accelerator) / 1e9
    memory = f"{shares.MEMORY} x memory - weights - {kept:.1f} GB per GPU"
    windows = ", sliding windows for a request of 2000 tokens" if model.window_layers else ""
    return {
        "kv_bytes_per_token": _specified(
            f"The model's configuration: {model.bits.kv:g}-bit numbers{windows}."
        ),
        "block_tokens": _specified("vLLM's default block size on CUDA."),
        "kv_tokens": _derived(f"({memory}) / bytes per token, in whole blocks.", 0.1),
        "seqs_max": _specified(rule),
        "batched_tokens_max": _specified(rule),
        "context_tokens": _specified(
            "The model's configuration, or the setting of the model that is served."
        ),
        "weights_bytes": _derived(
            f"{model.parameters / 1e9:.4g} billion parameters by its configuration.", 0.02
        ),
        "accelerator_memory_bytes": _specified("Memory that CUDA or ROCm reports."),
    }


def _of_swaps() -> dict[str, Source]:
    blog = f"{shares.SLEEP_MODE}"
    return {
        "swap_warm_s": _derived(f"{shares.WAKE_S} s + weights / host bandwidth. {blog}", 0.4),
        "swap_reload_s": _derived(
            f"{shares.RELOAD_S} s + weights / {shares.RELOAD_BYTES_PER_S / 1e9} GB/s of storage. {blog}", 0.5
        ),
        "swap_cold_s": _derived(
            f"{shares.COLD_S:.0f} s + weights / {shares.COLD_BYTES_PER_S / 1e9:.0f} GB/s. {blog}", 0.5
        ),
        "unload_s": _derived(
            "Taken as long as waking: the same bytes cross the same bus the other way.", 0.5
        ),
        "host_bandwidth_bytes_per_s": _derived(
            f"Two thirds of the host link, as waking reaches on one A100. {blog}", 0.4
        ),
    }


def _derived(text: str, uncertainty: float) -> Source:
    return Source(SourceKind.DERIVED, text, uncertainty)


def _specified(text: str) -> Source:
    return Source(SourceKind.SPECIFIED, text)
