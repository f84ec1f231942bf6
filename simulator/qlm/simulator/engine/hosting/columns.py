"""Columns of a `View` that follow from the state of the engine, one entry per request.

The requests of a batch are many and change little, so whatever a table has is not read from them one by one.
"""

from collections.abc import Sequence as Rows
from operator import attrgetter
from typing import cast

import numpy as np

from qlm.agents.batching.view import Ints, Place
from qlm.domain.ids import RequestId
from qlm.simulator.engine.host_cache import Copies
from qlm.simulator.engine.kv_cache import KvCache
from qlm.simulator.engine.scheduler import Scheduler
from qlm.simulator.engine.sequence import NOT_DECODING, Sequence

_call_id, _row, _blocks = attrgetter("call_id"), attrgetter("row"), attrgetter("blocks")


def ids_of(order: Rows[Sequence]) -> tuple[RequestId, ...]:
    """Return the ids of requests."""
    return cast(tuple[RequestId, ...], tuple(map(_call_id, order)))


def rows_of(order: Rows[Sequence]) -> Ints:
    """Return the rows of requests in the table."""
    return np.fromiter(map(_row, order), np.int64, len(order))


def places(batch: Scheduler, order: Rows[Sequence]) -> Ints:
    """Return where each request is.

    Args:
        batch: The engine's requests.
        order: Those that run, those that load, then the others.
    """
    column = np.full(len(order), int(Place.OUTSIDE), np.int64)
    running = len(batch.running)
    column[:running] = Place.INSIDE
    column[running : running + len(batch.loading)] = Place.LOADING
    if batch.on_hold:
        column[[row for row, each in enumerate(batch.running) if each in batch.on_hold]] = Place.HELD
    return column


def blocks(order: Rows[Sequence], inside: int) -> Ints:
    """Return the KV blocks of each request: none but for the first `inside`."""
    column = np.zeros(len(order), np.int64)
    column[:inside] = np.fromiter(map(len, map(_blocks, order[:inside])), np.int64, inside)
    return column


def host_tokens(
    cache: KvCache, order: Rows[Sequence], inside: int, tokens: Ints, copies: list[Copies]
) -> Ints:
    """Count the tokens in host memory: of who computes, all full blocks, which are there if it is preempted.

    Args:
        cache: The engine's KV cache.
        order: Those inside, then the others.
        inside: Their number.
        tokens: Prompt and output tokens of each request so far.
        copies: By row of the table, what was counted the last time; updated.
    """
    column, host, block_tokens = np.zeros(len(order), np.int64), cache.host, cache.block_tokens
    if not host.blocks_max:
        return column
    # All of a decoding request but its last token is computed.
    column[:inside] = (tokens[:inside] - 1) // block_tokens
    for row, each in enumerate(order[:inside]):
        if each.end == NOT_DECODING:
            column[row] = each.computed // block_tokens
    for row, each in enumerate(order[inside:], inside):
        if each.order:
            findable = each.generation.digests[: (each.tokens - 1) // block_tokens]
            found = copies[each.row] = host.recounted(copies[each.row], findable)
            column[row] = found.blocks
    return column * block_tokens
