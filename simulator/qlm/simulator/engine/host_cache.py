"""Cache of KV blocks in host memory, and the link over which they are loaded."""

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from qlm.rct_estimator.profiles.profile import Profile

_NS_PER_S: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class KvOffloading:
    """Rules of copying KV blocks to host memory and back (TokenFlow, section 5).

    Attributes:
        writes_through: Blocks are copied as soon as they are full. Otherwise, those of a request that its
            batch policy preempts are copied then, and stay allocated until that has ended.
        overlaps: Copies run in both directions at once. Otherwise one direction waits for the other.
    """

    writes_through: bool = True
    overlaps: bool = True


PROACTIVE: Final = KvOffloading()
"""Written through, both directions at once."""


class Copies(NamedTuple):
    """Leading blocks of a text that were in the cache.

    Attributes:
        blocks: Their number.
        oldest: The earliest of their last uses: they are still there as long as only older ones were dropped.
    """

    blocks: int
    oldest: int


NO_COPIES: Final = Copies(0, 0)

_UNCOUNTED: Final = -1
"""Use of a block that no open request has counted: when it is dropped, what they counted is still there."""


class HostCache:
    """Copies of full KV blocks in host memory, as in vLLM's native offloading connector.

    Loads share one direction of the link, one after the other, and writes the other one. What is written
    through is in the cache at once: no engine of the shipped profiles fills blocks at more than half of the
    bandwidth, so that no queue of writes builds up whose order could matter.

    Blocks of ended requests are dropped before those of requests that will need theirs again, if a batch
    policy says which have ended (`agents.vllm_offloading`). Among equals the block whose last use is the
    oldest goes first; uses are numbered.

    Attributes:
        blocks_max: Blocks for which it has room; 0 if it is switched off.
        offloading: Rules of copying.
        dropped: The latest of the last uses of blocks that were dropped and that an open request may have
            counted; -1 before the first one.
        load_free_ns: When all loads that were started have ended.
        write_free_ns: When all writes have ended that something may wait for.
    """

    __slots__ = (
        "_block_bytes",
        "_bytes_per_s",
        "_content",
        "_ended",
        "_unwritten",
        "_uses",
        "blocks_max",
        "dropped",
        "load_free_ns",
        "offloading",
        "write_free_ns",
    )

    def __init__(
        self, *, host_bytes: int, block_bytes: int, bytes_per_s: float, offloading: KvOffloading = PROACTIVE
    ) -> None:
        """Start empty.

        Args:
            host_bytes: Size of the cache; less than a block switches it off.
            block_bytes: Size of one KV block.
            bytes_per_s: Bandwidth of one direction.
            offloading: Rules of copying.
        """
        self.blocks_max = host_bytes // block_bytes
        self.offloading = offloading
        self._block_bytes = block_bytes
        self._bytes_per_s = bytes_per_s
        self._content: OrderedDict[int, int] = OrderedDict()  # last use by digest, the oldest first
        self._ended: OrderedDict[int, int] = OrderedDict()  # the same of ended requests
        self._unwritten: deque[tuple[int, int]] = deque()
        self._uses = 0
        self.dropped = -1
        self.load_free_ns = self.write_free_ns = 0

    @classmethod
    def of(
        cls, profile: Profile, block_tokens: int, host_bytes: int, offloading: KvOffloading
    ) -> "HostCache":
        """Return the empty cache of an engine with this profile."""
        return cls(
            host_bytes=host_bytes,
            block_bytes=profile.kv_bytes_per_token * block_tokens,
            bytes_per_s=profile.host_bandwidth_bytes_per_s,
            offloading=offloading,
        )

    def __len__(self) -> int:
        return len(self._content) + len(self._ended)

    def cached(self, digests: Sequence[int]) -> int:
        """Count the leading blocks, named by digest, that are in the cache."""
        for count, digest in enumerate(digests):
            if digest not in self._content and digest not in self._ended:
                return count
        return len(digests)

    def recounted(self, known: Copies, digests: Sequence[int]) -> Copies:
        """Count the leading blocks in the cache, from what was known of them before."""
        count, oldest = known if known.oldest > self.dropped else Copies(0, self._uses)
        for digest in digests[count:]:
            use = self._content.get(digest)
            if use is None and (use := self._ended.get(digest)) is None:
                break
            count, oldest = count + 1, min(oldest, use)
        return Copies(count, oldest)

    def write(self, digests: Iterable[int], now_ns: int) -> int:
        """Mark blocks as used, and copy missing ones from now on; return the number of copies."""
        copied = self.store(digests)
        if copied and not (self.offloading.writes_through and self.offloading.overlaps):
            self._unwritten.append((now_ns, copied))
        return copied

    def write_until(self, now_ns: int) -> None:
        """Put the writes on the link that begin by now; later loads wait for them if nothing overlaps."""
        while self._unwritten and self._unwritten[0][0] <= now_ns:
            at_ns, blocks = self._unwritten.popleft()
            begin_ns = max(at_ns, self.write_free_ns)
            if not self.offloading.overlaps:
                begin_ns = max(begin_ns, self.load_free_ns)
            self.write_free_ns = begin_ns + self._takes_ns(blocks)

    def store(self, digests: Iterable[int]) -> int:
        """Mark blocks of open requests as used, and add missing ones; return their number."""
        copied, content, ended = 0, self._content, self._ended
        for digest in digests:
            if digest in ended:
                continue  # until it is loaded, as in vLLM
            if digest in content:
                content.move_to_end(digest)
            else:
                if len(content) + len(ended) == self.blocks_max:
                    _, use = (ended or content).popitem(last=False)
                    self.dropped = max(self.dropped, use)
                copied += 1
            content[digest] = self._uses
            self._uses += 1
        return copied

    def end(self, digests: Sequence[int], *, shared: int) -> None:
        """Let the blocks of an ended request go before those of open ones, its last block first.

        Args:
            digests: Its full blocks.
            shared: Number of leading ones that other requests may have, too.
        """
        for at in range(len(digests) - 1, -1, -1):
            digest = digests[at]
            if digest in self._ended:
                self._ended.move_to_end(digest)
            elif (use := self._content.pop(digest, None)) is not None:
                self._ended[digest] = use if at < shared else _UNCOUNTED

    def load(self, digests: Sequence[int], now_ns: int) -> int:
        """Start to load blocks, all of which must be in the cache; return the end of the load, ns.

        Args:
            digests: The blocks.
            now_ns: The earliest begin: the present, or when the last of them has been written.
        """
        content = self._content
        for digest in digests:
            self._ended.pop(digest, None)
            content[digest] = self._uses
            content.move_to_end(digest)
            self._uses += 1
        self.write_until(now_ns)
        begin_ns = max(now_ns, self.load_free_ns)
        if not self.offloading.overlaps:
            begin_ns = max(begin_ns, self.write_free_ns)
        self.load_free_ns = begin_ns + self._takes_ns(len(digests))
        return self.load_free_ns

    def _takes_ns(self, blocks: int) -> int:
        return max(1, round(blocks * self._block_bytes / self._bytes_per_s * _NS_PER_S))

    def clear(self) -> None:
        """Clear the cache and the link."""
        self._content.clear()
        self._ended.clear()
        self._unwritten.clear()
        self.dropped = self._uses
        self._uses += 1
        self.load_free_ns = self.write_free_ns = 0
