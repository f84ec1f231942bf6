"""The paged KV cache of an emulated engine: blocks, who references them, and which can be found again."""

from collections import OrderedDict
from collections.abc import Sequence


class KvBlocks:
    """A ledger of KV blocks with prefix caching.

    As in vLLM V1: a block that nobody references keeps its content until it is handed out again, the
    one freed longest ago first; a full block is found by the digest of all ids up to its end.
    """

    def __init__(self, blocks: int) -> None:
        """Start with `blocks` free blocks without content."""
        self.total = blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))
        self._references = [0] * blocks
        self._digest_of: dict[int, int] = {}
        self._block_of: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Blocks that nobody references."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Blocks that somebody references."""
        return self.total - len(self._free)

    def cached(self, digests: Sequence[int]) -> int:
        """Count the leading blocks, named by digest, whose content is still here."""
        for count, digest in enumerate(digests):
            if digest not in self._block_of:
                return count
        return len(digests)

    def free_cached(self, digests: Sequence[int]) -> int:
        """Count those of the named blocks that are here and that nobody references."""
        return sum(self._block_of[digest] in self._free for digest in digests)

    def share(self, digests: Sequence[int]) -> list[int]:
        """Reference cached blocks, all of which must be here."""
        blocks = [self._block_of[digest] for digest in digests]
        for block in blocks:
            self._references[block] += 1
            self._free.pop(block, None)
        return blocks

    def take(self, count: int) -> list[int]:
        """Hand out `count` blocks, forgetting what they held; there must be so many free ones."""
        blocks = []
        for _ in range(count):
            block, _nothing = self._free.popitem(last=False)
            self._forget(block)
            self._references[block] = 1
            blocks.append(block)
        return blocks

    def seal(self, block: int, digest: int) -> None:
        """Note that a referenced block is full, and what it holds. The first of equal blocks is found."""
        if digest not in self._block_of and block not in self._digest_of:
            self._block_of[digest] = block
            self._digest_of[block] = digest

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference to each; the last blocks of a sequence are reused first."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None

    def forget_all(self) -> None:
        """Empty the prefix cache; references stay."""
        self._block_of.clear()
        self._digest_of.clear()

    def references(self) -> int:
        """References in all; equals the lengths of all holders' lists together."""
        return sum(self._references)

    def _forget(self, block: int) -> None:
        digest = self._digest_of.pop(block, None)
        if digest is not None:
            del self._block_of[digest]
