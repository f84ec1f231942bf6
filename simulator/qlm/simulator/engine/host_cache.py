"""Cache of KV blocks in host memory, and the link over which they are loaded."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

_NS_PER_S: Final = 1_000_000_000


class HostCache:
    """Copies of full KV blocks in host memory, as in vLLM's native offloading connector.

    Blocks are written through when they become full; the least recently used are dropped first. Loads share
    one direction of the link, one after the other. Writes use the other direction and cost no time.
    """

    __slots__ = ("_block_bytes", "_bytes_per_s", "_content", "_link_free_ns", "blocks_max")

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
        self._content: OrderedDict[int, None] = OrderedDict()
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

    def store(self, digests: Iterable[int]) -> int:
        """Mark blocks as used, and copy missing ones; return the number of copies."""
        copied = 0
        for digest in digests:
            if digest in self._content:
                self._content.move_to_end(digest)
                continue
            if len(self._content) == self.blocks_max:
                self._content.popitem(last=False)
            self._content[digest] = None
            copied += 1
        return copied

    def load(self, digests: Sequence[int], now_ns: int) -> int:
        """Start to load blocks, all of which must be in the cache; return the end of the load, ns."""
        for digest in digests:
            self._content.move_to_end(digest)
        size = len(digests) * self._block_bytes
        begin_ns = max(now_ns, self._link_free_ns)
        self._link_free_ns = begin_ns + max(1, round(size / self._bytes_per_s * _NS_PER_S))
        return self._link_free_ns

    def clear(self) -> None:
        """Clear the cache and the link."""
        self._content.clear()
        self._link_free_ns = 0
