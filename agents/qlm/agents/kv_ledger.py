"""The KV ledger: how much of the engine's KV cache the requests we gave it use, exact from their progress."""

from collections.abc import Iterable
from typing import Final

from qlm.agents.held import Held
from qlm.domain.fleet import EngineCapacity

GROWTH_BLOCKS: Final = 1
"""Blocks kept free per running request, so that decoding does not run into preemption at once."""

WATERMARK: Final = 0.01
"""Share of blocks kept free before admitting a request, as vLLM's own watermark; dimensionless."""

PLACES_FOR_ONE_AHEAD: Final = 32
"""For so many places of the batch one request more may be submitted, which waits in the engine: a place that
comes free is taken within the same step."""


class KvLedger:
    """Sums over the generating requests, kept up as they start, grow and end: asking costs nothing.

    Whoever brings tokens counts them here, and in the request's `blocks` and `spare_tokens`, since they come
    far more often than anything else.

    Attributes:
        running: Requests in the engine: in its batch, or ahead of their place.
        tokens: Prompt plus generated tokens of them all.
        blocks: KV blocks of them all, without reserves.
        block_tokens: Tokens in a block.
        seqs_max: Places in the batch.
        lax_limit: With so many running, no work without an objective starts (`agents.batch_limit`).
        goes_ahead: Work without an objective may be submitted ahead of its place (`agents.serving`).
    """

    def __init__(self) -> None:
        self.running = 0
        self.tokens = 0
        self.blocks = 0
        self.block_tokens = 1
        self.seqs_max = self.lax_limit = 0
        self.goes_ahead = False
        self._blocks_max = 0
        self._usable_blocks = 0

    def resize(self, capacity: EngineCapacity, generating: Iterable[Held]) -> None:
        """Take the capacity of another engine and count again what is in it."""
        self.block_tokens = capacity.block_tokens
        self.seqs_max = self.lax_limit = capacity.seqs_max
        self._blocks_max = capacity.kv_blocks
        self._usable_blocks = int(capacity.kv_blocks * (1 - WATERMARK))
        self.running = self.tokens = self.blocks = 0
        for held in generating:
            self.add(held)

    def add(self, held: Held) -> None:
        """Count a request that starts to generate."""
        tokens = held.tokens
        held.blocks = self.blocks_of(tokens)
        held.spare_tokens = held.blocks * self.block_tokens - tokens
        self.running += 1
        self.tokens += tokens
        self.blocks += held.blocks

    def remove(self, held: Held) -> None:
        """Count a request no longer."""
        self.running -= 1
        self.tokens -= held.tokens
        self.blocks -= held.blocks
        held.blocks = 0

    def blocks_of(self, tokens: int) -> int:
        """KV blocks that `tokens` tokens of one request take."""
        return -(-tokens // self.block_tokens)

    @property
    def in_batch(self) -> int:
        """Requests in the batch, as far as its places tell."""
        return min(self.running, self.seqs_max)

    @property
    def ahead(self) -> int:
        """Requests in the engine that have no place in its batch yet."""
        return max(0, self.running - self.seqs_max)

    def limit(self, *, lax: bool) -> int:
        """With so many in the engine none starts of lax work, or of other."""
        if not lax:
            return self.seqs_max
        if not self.goes_ahead or self.lax_limit < self.seqs_max:
            return self.lax_limit
        return self.seqs_max + self.seqs_max // PLACES_FOR_ONE_AHEAD

    def places(self, *, lax: bool) -> int:
        """How many more the engine takes of lax work or other; 0 if no block is left to grow into."""
        running, limit = self.running, self.limit(lax=lax)
        if self._usable_blocks - self.blocks <= GROWTH_BLOCKS * running:
            return 0
        return limit - running if limit > running else 0

    @property
    def free_blocks(self) -> int:
        """KV blocks left after watermark and growth reserve; never negative."""
        return max(0, self._usable_blocks - self.blocks - GROWTH_BLOCKS * self.running)

    def ever_fits(self, tokens: int) -> bool:
        """Whether the whole cache is enough for a request of `tokens` tokens."""
        return self.blocks_of(tokens) <= self._blocks_max

    def fits(self, tokens: int, *, lax: bool) -> bool:
        """Whether a request of `tokens` tokens can start now; one that is alone may use the reserves.

        Args:
            tokens: Of its text so far.
            lax: It has no objective.
        """
        if not self.running:
            return self.ever_fits(tokens)
        return (
            self.running < self.limit(lax=lax) and self.blocks_of(tokens) + GROWTH_BLOCKS <= self.free_blocks
        )
