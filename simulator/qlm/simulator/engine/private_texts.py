"""Texts of which only one request has ever been seen, so that nobody has looked for their blocks."""

from collections import deque
from collections.abc import Sequence as Blocks
from typing import NamedTuple

from qlm.simulator.engine.kv_blocks import KvBlocks
from qlm.simulator.engine.sequence import Sequence


class _Left(NamedTuple):
    """The blocks of a sequence that has left: number i from the end was entry `at` + i of the queue."""

    blocks: Blocks[int]
    digests: Blocks[int]
    at: int


class PrivateTexts:
    """Finds out, if ever a text comes again, which of its blocks are left.

    Free blocks are reused in the order of their queue, and those of a sequence enter it last block first. So
    the number of entries that have left the queue says how many of its blocks have been reused, and which.
    """

    __slots__ = ("_blocks", "_holders", "_left", "_left_order", "_public")

    def __init__(self, blocks: KvBlocks) -> None:
        """Start empty."""
        self._blocks = blocks
        self._holders: dict[int, Sequence] = {}
        self._left: dict[int, _Left] = {}
        self._left_order: deque[tuple[int, int, _Left]] = deque()
        self._public: set[int] = set()

    def holder(self, family: int) -> Sequence | None:
        """Return the sequence that has blocks of this text, if it is private."""
        return self._holders.get(family)

    def hold(self, sequence: Sequence) -> None:
        """Note that a sequence has taken blocks for a new text."""
        self._holders[sequence.text.family] = sequence

    def is_new(self, family: int) -> bool:
        """Whether nothing of a text can be found; publishes what is left of it."""
        if family in self._public:
            return False
        left = self._left.pop(family, None)
        if left is None:
            return True
        intact = len(left.blocks) - max(0, self._blocks.dequeued - left.at)
        if intact <= 0:
            return True
        self._public.add(family)
        sealed = min(intact, len(left.digests))
        self._blocks.publish(left.blocks[:sealed], left.digests[:sealed], held=False)
        return False

    def publish(self, sequence: Sequence, sealed: int) -> None:
        """Let the blocks of a sequence be found, `sealed` of which are full."""
        del self._holders[sequence.text.family]
        sequence.private = False
        self._public.add(sequence.text.family)
        self._blocks.publish(sequence.blocks, sequence.text.digests[:sealed], held=True)

    def release(self, sequence: Sequence, sealed: int) -> None:
        """Free the blocks of a sequence, `sealed` of which are full."""
        family = sequence.text.family
        del self._holders[family]
        left = _Left(sequence.blocks, sequence.text.digests[:sealed], self._blocks.enqueued)
        self._blocks.release_private(sequence.blocks)
        self._left[family] = left
        self._left_order.append((self._blocks.enqueued, family, left))
        while self._left_order[0][0] <= self._blocks.dequeued:
            _end, family, gone = self._left_order.popleft()
            if self._left.get(family) is gone:
                del self._left[family]

    def forget_all(self) -> None:
        """Forget all content; there must be no holders."""
        self._left.clear()
        self._left_order.clear()
        self._public.clear()
