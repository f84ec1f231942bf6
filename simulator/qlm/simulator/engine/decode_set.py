"""Decoding sequences of the batch, advanced together by one counter."""

from collections.abc import Collection, Iterator
from heapq import heappop, heappush
from itertools import chain

from qlm.simulator.engine.sequence import NOT_DECODING, Sequence


class DecodeSet:
    """Sequences that get one token in each iteration.

    Let L be the length of a generation and `end` the iteration that gives its last token. After iteration i
    it has L - end + i tokens, all but the last of them computed. So L and `end` determine its needs in each
    iteration: a block is full, and the next one needed, whenever i = `end` + 1 - L modulo the block size.
    """

    __slots__ = (
        "_block_tokens", "_by_residue", "_ends", "_families", "_tokens", "changes", "count", "iteration",
    )  # fmt: skip

    def __init__(self, block_tokens: int) -> None:
        """Start empty, before iteration 1."""
        self.iteration = 0
        """Number of the last iteration."""
        self.count = 0
        """Number of sequences."""
        self.changes = 0
        """Sequences that ever joined or left."""
        self._block_tokens = block_tokens
        self._tokens = 0
        self._by_residue: list[dict[Sequence, None]] = [{} for _ in range(block_tokens)]
        self._ends: list[tuple[int, int, Sequence]] = []
        self._families: dict[int, int] = {}

    @property
    def context_tokens(self) -> int:
        """Total length of all generations, without the tokens of the next iteration."""
        return self._tokens + self.count * self.iteration

    def generated(self, sequence: Sequence) -> int:
        """Return the present length of an answer."""
        return sequence.generation.output_tokens - sequence.end + self.iteration

    def computed(self, sequence: Sequence) -> int:
        """Return the number of a sequence's tokens in the KV cache, decoding or not."""
        if sequence.end == NOT_DECODING:
            return sequence.computed
        return sequence.generation.prompt_tokens + self.generated(sequence) - 1

    def join(self, sequence: Sequence) -> None:
        """Add a sequence whose tokens are all computed but the last."""
        generation = sequence.generation
        sequence.end = self.iteration + generation.output_tokens - sequence.generated
        self.count += 1
        self.changes += 1
        self._tokens += generation.tokens - sequence.end
        self._by_residue[(sequence.end + 1 - generation.tokens) % self._block_tokens][sequence] = None
        heappush(self._ends, (sequence.end, sequence.order, sequence))
        self._families[generation.family] = self._families.get(generation.family, 0) + 1

    def leave(self, sequence: Sequence) -> None:
        """Remove a sequence and write its progress back to it."""
        generation, end = sequence.generation, sequence.end
        sequence.generated = generation.output_tokens - end + self.iteration
        sequence.computed = generation.prompt_tokens + sequence.generated - 1
        self.count -= 1
        self.changes += 1
        self._tokens -= generation.tokens - end
        del self._by_residue[(end + 1 - generation.tokens) % self._block_tokens][sequence]
        sequence.end = NOT_DECODING
        if self._families[generation.family] == 1:
            del self._families[generation.family]
        else:
            self._families[generation.family] -= 1

    def members(self) -> Iterator[Sequence]:
        """Yield the sequences, in no particular order."""
        return chain.from_iterable(self._by_residue)

    def at_boundary(self, iteration: int) -> Collection[Sequence]:
        """Return the sequences, in batch order, whose blocks become full in that iteration."""
        return self._by_residue[iteration % self._block_tokens]

    def has_family(self, family: int) -> bool:
        """True if a generation of this family is being decoded."""
        return family in self._families

    def iterations_to_end(self) -> int:
        """Count the iterations until the first sequence ends; there must be one."""
        ends = self._ends
        while ends[0][2].end != ends[0][0]:
            heappop(ends)
        return ends[0][0] - self.iteration

    def iterations_within(self, blocks: int, iterations: int) -> int:
        """Count the iterations, up to `iterations`, that need at most `blocks` blocks after the first."""
        cycles = blocks // self.count
        left = blocks - cycles * self.count
        done = cycles * self._block_tokens + 1
        while done < iterations:
            left -= len(self._by_residue[(self.iteration + done) % self._block_tokens])
            if left < 0:
                return done
            done += 1
        return iterations

    def ended(self) -> list[Sequence]:
        """Return the sequences that the last iteration ended, in batch order, once; they are to leave."""
        ended, ends = [], self._ends
        while ends and ends[0][0] <= self.iteration:
            end, order, sequence = heappop(ends)
            # A preempted sequence is in the heap once for each admission.
            if sequence.end == end and sequence.order == order:
                ended.append(sequence)
        return ended
