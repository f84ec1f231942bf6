"""Shared prefixes of prompts, as ids of blocks of `PREFIX_TOKENS` tokens."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import numpy as np

from qlm.simulator.engine.generation import PREFIX_TOKENS
from qlm.simulator.scenario import IntArray, Workload

UNSHARED: Final = -1
"""Number of the prefix of a request that shares none."""

_NUMBER_BITS: Final = 44
_BLOCKS_MAX: Final = 1 << 18
"""Blocks of the longest prompt that a trace may have; with them a number fits 63 bits."""

PrefixIds = tuple[tuple[int, ...], ...]
"""For each request, ids of its prompt's first blocks. Equal ids mean equal tokens up to the block's end."""


def prefix_numbers(ids: Sequence[str]) -> IntArray:
    """Return a number for each id of a prefix: equal in all files for equal ids, UNSHARED for none."""
    bytes_used = -(-_NUMBER_BITS // 8)
    number = {
        each: int.from_bytes(blake2b(each.encode(), digest_size=bytes_used).digest()) % (1 << _NUMBER_BITS)
        for each in set(ids)
    }
    number[""] = UNSHARED
    return np.fromiter((number[each] for each in ids), np.int64, len(ids))


def block_ids(prefix: IntArray, prefix_tokens: IntArray) -> PrefixIds:
    """Return the ids of blocks of numbered prefixes.

    Args:
        prefix: Number of each request's prefix; requests of equal number share the shorter of their two.
        prefix_tokens: Length of each prefix; 0 for none. Its last block may be partial.
    """
    blocks = -(-prefix_tokens // PREFIX_TOKENS)
    first = prefix * _BLOCKS_MAX
    return tuple(tuple(range(at, at + n)) for at, n in zip(first.tolist(), blocks.tolist(), strict=True))


def covered_tokens(prefixes: PrefixIds, prompt_tokens: IntArray) -> IntArray:
    """Return the prompt tokens that whole blocks of ids cover, shape (requests,)."""
    blocks = np.fromiter((len(ids) for ids in prefixes), np.int64, len(prefixes))
    return np.asarray(np.minimum(blocks * PREFIX_TOKENS, prompt_tokens))


def prefix_tokens(workload: Workload) -> IntArray:
    """Return the prompt tokens that the ids of a workload cover, shape (requests,); 0 without ids."""
    if not workload.prefixes:
        return np.zeros(len(workload), dtype=np.int64)
    if workload.prefix_tokens is None:
        return covered_tokens(workload.prefixes, workload.prompt_tokens)
    return workload.prefix_tokens


def shared_tokens(prefixes: PrefixIds, prefix_tokens: Sequence[int]) -> int:
    """Count the prompt tokens with which an earlier prompt began, too: the most that a cache can find.

    Args:
        prefixes: Ids of blocks, in order of arrival.
        prefix_tokens: Tokens that the ids of each request cover.
    """
    known: dict[int, int] = {}
    shared = 0
    for ids, tokens in zip(prefixes, prefix_tokens, strict=True):
        same = True
        for number, block in enumerate(ids):
            within = min(PREFIX_TOKENS, tokens - number * PREFIX_TOKENS)
            before = known.get(block, 0)
            shared += min(within, before) if same else 0
            same = same and before >= within
            known[block] = max(within, before)
    return shared
