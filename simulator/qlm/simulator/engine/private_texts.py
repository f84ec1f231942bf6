"""Private texts: those of one request only, whose blocks are not in the prefix index."""

from collections import deque
from collections.abc import Sequence as Blocks
from typing import NamedTuple

from qlm.simulator.engine.kv_blocks import KvBlocks
from qlm.simulator.engine.sequence import Sequence


class _ReleasedBlocks(NamedTuple):
    """Blocks of an ended sequence: number i from the end is entry `at` + i of the queue of free blocks."""

    blocks: Blocks[int]
    digests: Blocks[int]
    at: int


class PrivateTexts:
    """Finds the remaining blocks of a private text when it comes again.

    Free blocks are reused in the order of their queue, and those of a sequence enter it last block first. So
    the number of entries that have left the queue determines which of its blocks have been reused.
    """

    __slots__ = ("_blocks", "_holders", "_public", "_release_order", "_released")

    def __init__(self, blocks: KvBlocks) -> None:
        """Start empty."""
        self._blocks = blocks
        self._holders: dict[int, Sequence] = {}
        self._released: dict[int, _ReleasedBlocks] = {}
        self._release_order: deque[tuple[int, int, _ReleasedBlocks]] = deque()
        self._public: set[int] = set()

    def holder(self, family: int) -> Sequence | None:
        """Return the sequence that has blocks of this text, if it is private."""
        return self._holders.get(family)

    def hold(self, sequence: Sequence) -> None:
        """Add a sequence that has blocks of a new text."""
        self._holders[sequence.generation.family] = sequence

    def is_new(self, family: int) -> bool:
        """Return whether no block of a text can be found; publishes its remaining blocks."""
        if family in self._public:
            return False
        released = self._released.pop(family, None)
        if released is None:
            return True
        intact = len(released.blocks) - max(0, self._blocks.dequeued - released.at)
        if intact <= 0:
            return True
        self._public.add(family)
        sealed = min(intact, len(released.digests))
        self._blocks.publish(released.blocks[:sealed], released.digests[:sealed], referenced=False)
        return False

    def publish(self, sequence: Sequence, sealed: int) -> None:
        """Make the blocks of a sequence findable; the first `sealed` are full."""
        del self._holders[sequence.generation.family]
        sequence.private = False
        self._public.add(sequence.generation.family)
        self._blocks.publish(sequence.blocks, sequence.generation.digests[:sealed], referenced=True)

    def release(self, sequence: Sequence, sealed: int) -> None:
        """Free the blocks of a sequence; the first `sealed` are full."""
        family = sequence.generation.family
        del self._holders[family]
        released = _ReleasedBlocks(
            sequence.blocks, sequence.generation.digests[:sealed], self._blocks.enqueued
        )
        self._blocks.release_private(sequence.blocks)
        self._released[family] = released
        self._release_order.append((self._blocks.enqueued, family, released))
        while self._release_order[0][0] <= self._blocks.dequeued:
            _end, family, gone = self._release_order.popleft()
            if self._released.get(family) is gone:
                del self._released[family]

    def forget_all(self) -> None:
        """Clear all content; no sequence may have blocks."""
        self._released.clear()
        self._release_order.clear()
        self._public.clear()
