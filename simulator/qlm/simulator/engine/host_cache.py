"""Cache of KV blocks in host memory, and the link over which they are loaded."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

_NS_PER_S: Final = 1_000_000_000


class Copies(NamedTuple):
    """Leading blocks of a text that were in the cache.

    Attributes:
        blocks: Their number.
        oldest: The earliest of their last uses: they are still there as long as only older ones were dropped.
    """

    blocks: int
    oldest: int


NO_COPIES: Final = Copies(0, 0)


class HostCache:
    """Copies of full KV blocks in host memory, as in vLLM's native offloading connector.

    Blocks are written through when they become full; the least recently used are dropped first. Loads share
    one direction of the link, one after the other. Writes use the other direction and cost no time.

    Uses are numbered, and the block whose last use is the oldest is dropped first.

    Attributes:
        blocks_max: Blocks for which it has room; 0 if it is switched off.
        dropped: The last use of the block that was dropped last; -1 before the first one.
    """

    __slots__ = (
        "_block_bytes",
        "_bytes_per_s",
        "_content",
        "_link_free_ns",
        "_uses",
        "blocks_max",
        "dropped",
    )

    def __init__(self, *, host_bytes: int, block_bytes: int, bytes_per_s: float) -> None:
        """Start empty.

        Args:
            host_bytes: Size of the cache; less than a block switches it off.
            block_bytes: Size of one KV block.
            bytes_per_s: Bandwidth from host to accelerator.
        """
        self.blocks_max = host_bytes // block_bytes
        self._block_bytes = block_bytes
        self._bytes_per_s = bytes_per_s
        self._content: OrderedDict[int, int] = OrderedDict()
        self._uses = 0
        self.dropped = -1
        self._link_free_ns = 0

    def __len__(self) -> int:
        return len(self._content)

    @property
    def load_free_ns(self) -> int:
        """When all loads that were started have ended."""
        return self._link_free_ns

    def cached(self, digests: Sequence[int]) -> int:
        """Count the leading blocks, named by digest, that are in the cache."""
        for count, digest in enumerate(digests):
            if digest not in self._content:
                return count
        return len(digests)

    def recounted(self, known: Copies, digests: Sequence[int]) -> Copies:
        """Count the leading blocks in the cache, from what was known of them before."""
        count, oldest = known if known.oldest > self.dropped else Copies(0, self._uses)
        for digest in digests[count:]:
            use = self._content.get(digest)
            if use is None:
                break
            count, oldest = count + 1, min(oldest, use)
        return Copies(count, oldest)

    def store(self, digests: Iterable[int]) -> int:
        """Mark blocks as used, and copy missing ones; return the number of copies."""
        copied, content = 0, self._content
        for digest in digests:
            if digest in content:
                content.move_to_end(digest)
            else:
                if len(content) == self.blocks_max:
                    _, self.dropped = content.popitem(last=False)
                copied += 1
            content[digest] = self._uses
            self._uses += 1
        return copied

    def load(self, digests: Sequence[int], now_ns: int) -> int:
        """Start to load blocks, all of which must be in the cache; return the end of the load, ns."""
        content = self._content
        for digest in digests:
            content.move_to_end(digest)
            content[digest] = self._uses
            self._uses += 1
        size = len(digests) * self._block_bytes
        begin_ns = max(now_ns, self._link_free_ns)
        self._link_free_ns = begin_ns + max(1, round(size / self._bytes_per_s * _NS_PER_S))
        return self._link_free_ns

    def clear(self) -> None:
        """Clear the cache and the link."""
        self._content.clear()
        self.dropped = self._uses
        self._uses += 1
        self._link_free_ns = 0
