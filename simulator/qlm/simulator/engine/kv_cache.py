"""KV cache of an engine: blocks on the accelerator, and their copies in host memory."""

from collections import deque
from collections.abc import Collection

from qlm.domain.fleet import EngineCapacity
from qlm.simulator.engine.decode_set import DecodeSet
from qlm.simulator.engine.host_cache import HostCache
from qlm.simulator.engine.kv_blocks import KvBlocks
from qlm.simulator.engine.model import EngineCounters
from qlm.simulator.engine.private_texts import PrivateTexts
from qlm.simulator.engine.sequence import Sequence


class KvCache:
    """Allocates blocks to sequences and finds computed prefixes.

    A text that shares no block with others (see `Generation.shared`) is private as long as only one request
    has it. No request looks for its blocks, so they are not indexed one by one. When the text comes again,
    its remaining blocks are published first, and are found as if they had been indexed all the time.
    """

    __slots__ = (
        "_capacity",
        "_counters",
        "_decodes",
        "_leaving",
        "_private",
        "block_tokens",
        "blocks",
        "host",
    )

    def __init__(
        self, capacity: EngineCapacity, host: HostCache, decodes: DecodeSet, counters: EngineCounters
    ) -> None:
        self.blocks = KvBlocks(capacity.kv_blocks)
        self.host = host
        self._capacity = capacity
        self.block_tokens = capacity.block_tokens
        self._decodes = decodes
        self._counters = counters
        self._private = PrivateTexts(self.blocks)
        self._leaving: deque[tuple[int, list[int]]] = deque()

    def reserve(self, sequence: Sequence, spare_blocks: int, now_ns: int, *, loads: bool = True) -> bool:
        """Allocate the blocks of the whole text so far, cached ones first; False if they do not fit.

        At least the last token is computed again, since only that yields the next one. Blocks that follow the
        cached ones and are in host memory start to load, if it `loads`: see `ready_ns`.
        """
        tokens, block_tokens, blocks = sequence.tokens, self.block_tokens, self.blocks
        if (
            not sequence.generation.shared
            and not self.host.blocks_max
            and self._is_new(sequence.generation.family)
        ):
            return self._reserve_private(sequence, spare_blocks)
        findable = sequence.generation.digests[: (tokens - 1) // block_tokens]
        count = blocks.cached(findable)
        found = findable[:count]
        missing = self._capacity.blocks(tokens) - count
        if missing > blocks.free - blocks.free_cached(found) - spare_blocks:
            return False
        sequence.blocks = blocks.share(found) + blocks.take(missing) if count else blocks.take(missing)
        sequence.computed = count * block_tokens
        if loads:
            self._load(sequence, count, now_ns)
        self._count(sequence)
        return True

    def grow(self, sequences: Collection[Sequence]) -> None:
        """Allocate one block to each sequence; as many must be free."""
        public = []
        for sequence, block in zip(sequences, self.blocks.take_private(len(sequences)), strict=True):
            sequence.blocks.append(block)
            if not sequence.private:
                public.append(block)
        if public:
            self.blocks.publish(public, (), referenced=True)

    def fill(self, sequence: Sequence, tokens: int, now_ns: int) -> None:
        """Record that further tokens of a sequence are computed."""
        full = sequence.computed // self.block_tokens
        sequence.computed += tokens
        if sequence.private:
            return
        now_full = sequence.computed // self.block_tokens
        if now_full == full:
            return
        digests = sequence.generation.digests[full:now_full]
        self.blocks.seal_all(sequence.blocks[full:now_full], digests)
        if self.host.blocks_max and self.host.offloading.writes_through:
            self._write(digests, now_ns)

    def fill_last(self, sequence: Sequence, now_ns: int) -> None:
        """Record that the last block of a decoding, not private sequence is full."""
        digest = sequence.generation.digests[len(sequence.blocks) - 1]
        self.blocks.seal(sequence.blocks[-1], digest)
        if self.host.blocks_max and self.host.offloading.writes_through:
            self._write((digest,), now_ns)

    def _write(self, digests: Collection[int], now_ns: int) -> None:
        self._counters.offloaded_tokens += self.host.write(digests, now_ns) * self.block_tokens

    def evict(self, sequence: Sequence, now_ns: int) -> None:
        """Free the blocks of a sequence that a batch policy preempts, once host memory has what is full."""
        if not self.host.blocks_max or self.host.offloading.writes_through:
            self.release(sequence)
            return
        full, written = sequence.computed // self.block_tokens, self._counters.offloaded_tokens
        self._write(sequence.generation.digests[:full], now_ns)
        self.host.write_until(now_ns)
        sequence.ready_ns = self.host.write_free_ns
        if self._counters.offloaded_tokens == written:
            self.release(sequence)
            return
        self._leaving.append((sequence.ready_ns, sequence.blocks))
        sequence.blocks = []

    def free_written(self, now_ns: int) -> None:
        """Free the blocks that are in host memory by now of sequences that were evicted."""
        while self._leaving and self._leaving[0][0] <= now_ns:
            self.blocks.release(self._leaving.popleft()[1])

    def ready_ns(self, loaded_ns: int | None) -> int | None:
        """Return when the next blocks of an evicted sequence are free, or `loaded_ns` if that is sooner."""
        if not self._leaving:
            return loaded_ns
        written_ns = self._leaving[0][0]
        return written_ns if loaded_ns is None else min(loaded_ns, written_ns)

    def end(self, sequence: Sequence) -> None:
        """Let the copies of blocks that an ended request had go before those of open ones."""
        if self.host.blocks_max:
            had = sequence.had(self._decodes.computed(sequence))
            digests = sequence.generation.digests[: had // self.block_tokens]
            self.host.end(digests, shared=sequence.generation.shared)

    def release(self, sequence: Sequence) -> None:
        """Free the blocks of a sequence; their content stays findable."""
        if sequence.private:
            self._private.release(sequence, sequence.computed // self.block_tokens)
            sequence.private = False
        else:
            self.blocks.release(sequence.blocks)
        sequence.blocks = []

    def forget_all(self) -> None:
        """Clear both caches; references stay."""
        while self._leaving:
            self.blocks.release(self._leaving.popleft()[1])
        self.blocks.forget_all()
        self._private.forget_all()
        self.host.clear()

    def _is_new(self, family: int) -> bool:
        """Return whether no block of this text can be found; publishes blocks of a private one."""
        if (holder := self._private.holder(family)) is not None:
            self._private.publish(holder, self._decodes.computed(holder) // self.block_tokens)
        return self._private.is_new(family)

    def _reserve_private(self, sequence: Sequence, spare_blocks: int) -> bool:
        missing = self._capacity.blocks(sequence.tokens)
        if missing > self.blocks.free - spare_blocks:
            return False
        sequence.blocks = self.blocks.take_private(missing)
        sequence.private = True
        self._private.hold(sequence)
        self._count(sequence)
        return True

    def _count(self, sequence: Sequence) -> None:
        """Count the prefix lookup of a first admission."""
        if sequence.cached is None:
            tokens = sequence.tokens
            sequence.cached = sequence.computed + sequence.loading
            self._counters.prompt_tokens += tokens
            self._counters.prefix_queries += tokens
            self._counters.prefix_hits += sequence.computed

    def _load(self, sequence: Sequence, cached: int, now_ns: int) -> None:
        """Start to load the blocks in host memory that follow the cached ones."""
        if not self.host.blocks_max:
            return
        findable = sequence.generation.digests[cached : (sequence.tokens - 1) // self.block_tokens]
        if count := self.host.cached(findable):
            sequence.ready_ns = self.host.load(findable[:count], max(now_ns, sequence.ready_ns))
            sequence.loading = count * self.block_tokens
            self._counters.reloaded_tokens += sequence.loading
