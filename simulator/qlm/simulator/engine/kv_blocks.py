"""The paged KV cache of an emulated engine: blocks, who references them, and which can be found again."""

from collections.abc import Sequence


class KvBlocks:
    """A ledger of KV blocks with prefix caching.

    As in vLLM V1: a block that nobody references keeps its content until it is handed out again, the
    one freed longest ago first; a full block is found by the digest of all ids up to its end.
    """

    __slots__ = (
        "_block_of",
        "_digest_of",
        "_first",
        "_held",
        "_more",
        "_queue",
        "_skip",
        "dequeued",
        "enqueued",
        "free",
        "total",
    )

    def __init__(self, blocks: int) -> None:
        """Start with `blocks` free blocks without content."""
        self.total = blocks
        self.free = blocks
        """Blocks that nobody references."""
        self.enqueued = blocks
        """Entries ever put into the queue of free blocks."""
        self.dequeued = 0
        """Entries ever taken out of it."""
        self._queue = list(range(blocks))
        self._first = 0
        """Where the queue begins; what is before was taken, and is cut off when it is the longer part."""
        self._skip: dict[int, int] = {}
        """How many entries of a block in the queue are void since it was taken from its middle."""
        self._held: set[int] = set()
        """Referenced blocks that can be found, or may become so."""
        self._more: dict[int, int] = {}
        """References beyond the first."""
        self._digest_of: dict[int, int] = {}
        self._block_of: dict[int, int] = {}

    @property
    def used(self) -> int:
        """Blocks that somebody references."""
        return self.total - self.free

    def cached(self, digests: Sequence[int]) -> int:
        """Count the leading blocks, named by digest, whose content is still here."""
        known = self._block_of
        for count, digest in enumerate(digests):
            if digest not in known:
                return count
        return len(digests)

    def free_cached(self, digests: Sequence[int]) -> int:
        """Count those of the named blocks that are here and that nobody references."""
        return sum(self._block_of[digest] not in self._held for digest in digests)

    def share(self, digests: Sequence[int]) -> list[int]:
        """Reference cached blocks, all of which must be here."""
        blocks = [self._block_of[digest] for digest in digests]
        for block in blocks:
            if block in self._held:
                self._more[block] = self._more.get(block, 0) + 1
            else:
                self._held.add(block)
                self._skip[block] = self._skip.get(block, 0) + 1
                self.free -= 1
        return blocks

    def take(self, count: int, *, private: bool = False) -> list[int]:
        """Hand out `count` blocks, forgetting what they held; there must be so many free ones.

        Blocks taken as private are released as such, and not sealed before they have been published.
        """
        if self._skip:
            blocks = [self._next_free() for _ in range(count)]
        else:
            blocks = self._queue[self._first : self._first + count]
            self._advance(count)
        self.free -= count
        if not private:
            self._held.update(blocks)
        if self._digest_of:
            self._forget(blocks)
        return blocks

    def publish(self, blocks: Sequence[int], digests: Sequence[int], *, held: bool) -> None:
        """Let private blocks be found by digest; if `held`, they are referenced, else they are free."""
        if held:
            self._held.update(blocks)
        self.seal_all(blocks[: len(digests)], digests)

    def seal(self, block: int, digest: int) -> None:
        """Note that a referenced block is full, and what it holds. The first of equal blocks is found."""
        if digest not in self._block_of and block not in self._digest_of:
            self._block_of[digest] = block
            self._digest_of[block] = digest

    def seal_all(self, blocks: Sequence[int], digests: Sequence[int]) -> None:
        """Seal several blocks, one after the other."""
        if self._block_of.keys().isdisjoint(digests) and self._digest_of.keys().isdisjoint(blocks):
            self._block_of.update(zip(digests, blocks, strict=True))
            self._digest_of.update(zip(blocks, digests, strict=True))
            return
        for block, digest in zip(blocks, digests, strict=True):
            self.seal(block, digest)

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference to each; the last blocks of a sequence are reused first."""
        if self._more:
            blocks = [block for block in blocks if not self._still_held(block)]
        self._held.difference_update(blocks)
        self.release_private(blocks)

    def release_private(self, blocks: Sequence[int]) -> None:
        """Free private blocks."""
        self._queue += blocks[::-1]
        self.enqueued += len(blocks)
        self.free += len(blocks)

    def forget_all(self) -> None:
        """Empty the prefix cache; references stay."""
        self._block_of.clear()
        self._digest_of.clear()

    def references(self) -> int:
        """References in all; equals the lengths of all holders' lists together."""
        return self.used + sum(self._more.values())

    def _advance(self, count: int) -> None:
        """Leave out the first entries of the queue."""
        self.dequeued += count
        self._first += count
        if 2 * self._first > len(self._queue):
            del self._queue[: self._first]
            self._first = 0

    def _next_free(self) -> int:
        block = self._queue[self._first]
        self._advance(1)
        while void := self._skip.get(block, 0):
            if void == 1:
                del self._skip[block]
            else:
                self._skip[block] = void - 1
            block = self._queue[self._first]
            self._advance(1)
        return block

    def _forget(self, blocks: Sequence[int]) -> None:
        digest_of, block_of = self._digest_of, self._block_of
        for block in blocks:
            if block in digest_of:
                del block_of[digest_of.pop(block)]

    def _still_held(self, block: int) -> bool:
        """Drop a reference beyond the first, if there is one."""
        more = self._more.get(block, 0)
        if more == 1:
            del self._more[block]
        elif more:
            self._more[block] = more - 1
        return more > 0
