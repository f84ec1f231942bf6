"""Profile of a model from its configuration and the accelerator's data sheet."""

from typing import Final

from qlm.rct_estimator.profiles.accelerators import Accelerator
from qlm.rct_estimator.profiles.profile import Profile
from qlm.rct_estimator.roofline.architecture import Architecture
from qlm.rct_estimator.roofline.capacity import BLOCK_TOKENS, batch_limits, check_gpus, kv_tokens, swap_times
from qlm.rct_estimator.roofline.shares import REQUEST_MS
from qlm.rct_estimator.roofline.sources import sources
from qlm.rct_estimator.roofline.timing import Roofline

ENGINE: Final = "vLLM 0.32.0, not measured"


def roofline_profile(
    architecture: Architecture,
    *,
    model: str,
    accelerator: Accelerator,
    gpus: int = 1,
    name: str | None = None,
    context_tokens: int | None = None,
) -> Profile:
    """Return the profile of an unmeasured model.

    Args:
        architecture: The model.
        model: Its name in the profile.
        accelerator: What it runs on.
        gpus: Accelerators that one engine spans by tensor parallelism.
        name: Name of the accelerator in the profile; without it, that of the table.
        context_tokens: Prompt plus output at most; without it, what the model allows.

    Raises:
        InvalidValueError: The weights do not fit, or the heads cannot be spread over so many GPUs; the
            message names the GPUs needed.
    """
    check_gpus(architecture, gpus)
    roofline = Roofline(architecture, accelerator, gpus)
    context = context_tokens or architecture.context_tokens
    limits = batch_limits(accelerator, context)
    swap = swap_times(architecture.weights_bytes, accelerator, gpus)
    return Profile(
        model=model,
        accelerator=name or accelerator.name,
        gpus=gpus,
        engine=ENGINE,
        iteration=roofline.iteration(),
        async_scheduling=True,
        request_ms=REQUEST_MS,
        kv_bytes_per_token=architecture.kv_bytes_per_token(gpus),
        block_tokens=BLOCK_TOKENS,
        kv_tokens=kv_tokens(architecture, accelerator, gpus),
        seqs_max=limits.seqs_max,
        batched_tokens_max=limits.batched_tokens_max,
        context_tokens=context,
        weights_bytes=architecture.weights_bytes,
        accelerator_memory_bytes=accelerator.memory_bytes * gpus,
        swap_warm_s=swap.warm_s,
        swap_reload_s=swap.reload_s,
        swap_cold_s=swap.cold_s,
        unload_s=swap.unload_s,
        host_bandwidth_bytes_per_s=swap.host_bandwidth_bytes_per_s,
        sources=sources(roofline),
    )
