"""The KV ledger: how much of the engine's KV cache the requests we gave it use, exact from their progress."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from qlm.domain.fleet import EngineCapacity

GROWTH_BLOCKS: Final = 1
"""Blocks kept free per running request, so that decoding does not run into preemption at once."""

WATERMARK: Final = 0.01
"""Share of blocks kept free before admitting a request, as vLLM's own watermark; dimensionless."""


@dataclass(frozen=True, slots=True)
class Room:
    """What else fits into an engine.

    Attributes:
        seqs: Further requests.
        blocks: Further KV blocks.
    """

    seqs: int
    blocks: int


def room(capacity: EngineCapacity, running_tokens: Iterable[int]) -> Room:
    """Compute what fits beside the running requests.

    Args:
        capacity: Of the awake engine.
        running_tokens: Prompt plus generated tokens of each running request.

    Returns:
        Free places in the batch and free KV blocks after watermark and growth reserve; never negative.
    """
    used_blocks = 0
    running = 0
    for tokens in running_tokens:
        used_blocks += capacity.blocks(tokens) + GROWTH_BLOCKS
        running += 1
    usable = int(capacity.kv_blocks * (1 - WATERMARK))
    return Room(seqs=max(0, capacity.seqs_max - running), blocks=max(0, usable - used_blocks))


def fits(capacity: EngineCapacity, free: Room, tokens: int, *, alone: bool) -> bool:
    """Whether a request of `tokens` tokens can start in `free`; one that is alone may use the reserves."""
    if alone:
        return capacity.blocks(tokens) <= capacity.kv_blocks
    return free.seqs > 0 and capacity.blocks(tokens) + GROWTH_BLOCKS <= free.blocks
