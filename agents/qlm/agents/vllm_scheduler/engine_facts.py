"""What a vLLM 0.32 scheduler and its requests say about themselves, in the terms of a `View`."""

from collections.abc import Iterable
from typing import Any

from qlm.agents.batching.view import Machine, Place
from qlm.agents.vllm_scheduler.streamed import StreamedRequest
from qlm.agents.vllm_scheduler.views import EngineRow
from qlm.rct_estimator.profiles.iteration import IterationTime


def machine_of(
    scheduler: Any, rows: Iterable[EngineRow], iteration: IterationTime, link_bytes_per_s: float
) -> Machine:
    """Return the engine as policies see it.

    Requests that share a prefix have the same blocks, and each counts them as its own. As policies add up,
    the engine then has as many more: else they would preempt requests that are inside and fit.
    """
    config, free = scheduler.kv_cache_config, free_blocks(scheduler)
    cache_bytes = sum(tensor.size for tensor in config.kv_cache_tensors)
    shards = scheduler.parallel_config.tensor_parallel_size
    return Machine(
        iteration=iteration,
        kv_blocks=max(_kv_blocks(scheduler), sum(row.blocks for row in rows) + free),
        free_blocks=free,
        block_tokens=scheduler.block_size,
        seqs_max=scheduler.max_num_active_reqs,
        batched_tokens_max=scheduler.max_num_scheduled_tokens,
        token_bytes=shards * cache_bytes // (config.num_blocks * scheduler.block_size),
        # What a connector has stored in host memory, it does not say.
        host_blocks=0,
        link_bytes_per_s=link_bytes_per_s,
        load_free_s=0.0,
        write_free_s=0.0,
    )


def row_of(scheduler: Any, request: Any, place: Place, stream: StreamedRequest) -> EngineRow:
    """Return one request as policies see it."""
    manager = scheduler.kv_cache_manager.coordinator.single_type_managers[0]
    return EngineRow(
        id=request.request_id,
        place=place,
        prompt=request.num_prompt_tokens,
        output=request.num_output_tokens,
        output_max=request.max_tokens,
        blocks=len(manager.req_to_blocks.get(request.request_id, ())),
        preemptions=request.num_preemptions,
        stream=stream,
    )


def free_blocks(scheduler: Any) -> int:
    """Return the KV blocks that no request has; prefixes of ended requests may be in them."""
    return int(scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


def needed_blocks(scheduler: Any, request: Any) -> int:
    """Return the KV blocks of a request once its next token is computed."""
    return -(-(int(request.num_tokens) + 1) // int(scheduler.block_size))


def used_tokens(scheduler: Any) -> int:
    """Return the tokens for which requests have KV blocks."""
    return (_kv_blocks(scheduler) - free_blocks(scheduler)) * int(scheduler.block_size)


def _kv_blocks(scheduler: Any) -> int:
    return int(scheduler.kv_cache_config.num_blocks) - 1  # one is vLLM's own
