"""Paged KV blocks of an emulated engine: references, free queue and prefix index."""

from collections.abc import Sequence


class KvBlocks:
    """Allocator of KV blocks with prefix caching, as in vLLM V1.

    A block without references keeps its content until it is allocated again; the one freed longest ago goes
    first. A full block is found by the digest of all ids up to its end.
    """

    __slots__ = (
        "_block_of",
        "_digest_of",
        "_extra_references",
        "_first",
        "_queue",
        "_referenced",
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
        """Blocks without references."""
        self.enqueued = blocks
        """Entries ever put into the queue of free blocks."""
        self.dequeued = 0
        """Entries ever taken out of it."""
        self._queue = list(range(blocks))
        self._first = 0
        """Start of the queue; the taken entries before it are cut off when they are the longer part."""
        self._skip: dict[int, int] = {}
        """Number of void entries in the queue by block, which was taken from the middle of the queue."""
        self._referenced: set[int] = set()
        """Referenced blocks that can be found, or may become findable."""
        self._extra_references: dict[int, int] = {}
        """References beyond the first."""
        self._digest_of: dict[int, int] = {}
        self._block_of: dict[int, int] = {}

    @property
    def used(self) -> int:
        """Blocks with references."""
        return self.total - self.free

    def cached(self, digests: Sequence[int]) -> int:
        """Count the leading blocks, named by digest, whose content is still cached."""
        known = self._block_of
        for count, digest in enumerate(digests):
            if digest not in known:
                return count
        return len(digests)

    def free_cached(self, digests: Sequence[int]) -> int:
        """Count the named blocks without references; all of them must be cached."""
        return sum(self._block_of[digest] not in self._referenced for digest in digests)

    def share(self, digests: Sequence[int]) -> list[int]:
        """Reference cached blocks; all of them must be cached."""
        blocks = [self._block_of[digest] for digest in digests]
        for block in blocks:
            if block in self._referenced:
                self._extra_references[block] = self._extra_references.get(block, 0) + 1
            else:
                self._referenced.add(block)
                self._skip[block] = self._skip.get(block, 0) + 1
                self.free -= 1
        return blocks

    def take(self, count: int) -> list[int]:
        """Allocate `count` blocks and drop their content; as many must be free."""
        blocks = self.take_private(count)
        self._referenced.update(blocks)
        return blocks

    def take_private(self, count: int) -> list[int]:
        """Allocate blocks as `take` does that are sealed only after `publish`; see `release_private`."""
        if self._skip:
            blocks = [self._next_free() for _ in range(count)]
        else:
            end = self._first + count
            blocks = self._queue[self._first : end]
            self.dequeued += count
            self._first = end
            if 2 * end > len(self._queue):
                self._cut_off()
        self.free -= count
        if self._digest_of:
            self._forget(blocks)
        return blocks

    def publish(self, blocks: Sequence[int], digests: Sequence[int], *, referenced: bool) -> None:
        """Make private blocks findable by digest; they are either `referenced` or free."""
        if referenced:
            self._referenced.update(blocks)
        self.seal_all(blocks[: len(digests)], digests)

    def seal(self, block: int, digest: int) -> None:
        """Index a full, referenced block by its digest; of equal blocks the first is indexed."""
        if digest not in self._block_of and block not in self._digest_of:
            self._block_of[digest] = block
            self._digest_of[block] = digest

    def seal_all(self, blocks: Sequence[int], digests: Sequence[int]) -> None:
        """Index several blocks, one after the other."""
        if self._block_of.keys().isdisjoint(digests) and self._digest_of.keys().isdisjoint(blocks):
            self._block_of.update(zip(digests, blocks, strict=True))
            self._digest_of.update(zip(blocks, digests, strict=True))
            return
        for block, digest in zip(blocks, digests, strict=True):
            self.seal(block, digest)

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference to each; the last blocks of a sequence are reused first."""
        if self._extra_references:
            blocks = [block for block in blocks if not self._drop_extra_reference(block)]
        self._referenced.difference_update(blocks)
        self.release_private(blocks)

    def release_private(self, blocks: Sequence[int]) -> None:
        """Free private blocks."""
        self._queue += blocks[::-1]
        self.enqueued += len(blocks)
        self.free += len(blocks)

    def forget_all(self) -> None:
        """Clear the prefix index; references stay."""
        self._block_of.clear()
        self._digest_of.clear()

    def references(self) -> int:
        """Count all references; equals the total length of the sequences' lists of blocks."""
        return self.used + sum(self._extra_references.values())

    def _cut_off(self) -> None:
        del self._queue[: self._first]
        self._first = 0

    def _next_free(self) -> int:
        block = self._next_entry()
        while void := self._skip.get(block, 0):
            if void == 1:
                del self._skip[block]
            else:
                self._skip[block] = void - 1
            block = self._next_entry()
        return block

    def _next_entry(self) -> int:
        block = self._queue[self._first]
        self.dequeued += 1
        self._first += 1
        if 2 * self._first > len(self._queue):
            self._cut_off()
        return block

    def _forget(self, blocks: Sequence[int]) -> None:
        digest_of, block_of = self._digest_of, self._block_of
        for block in blocks:
            if block in digest_of:
                del block_of[digest_of.pop(block)]

    def _drop_extra_reference(self, block: int) -> bool:
        """Drop one reference beyond the first; return whether there was one."""
        extra = self._extra_references.get(block, 0)
        if extra == 1:
            del self._extra_references[block]
        elif extra:
            self._extra_references[block] = extra - 1
        return extra > 0
