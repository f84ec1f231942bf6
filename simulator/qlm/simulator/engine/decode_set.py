"""The decoding part of the batch, advanced by a counter instead of sequence by sequence."""

from collections.abc import Collection
from heapq import heappop, heappush

from qlm.simulator.engine.sequence import NOT_DECODING, Sequence


class DecodeSet:
    """Sequences that get one token in each iteration.

    With L the length of a whole text and `end` the number of the iteration that gives its last token, it
    has L - end + i tokens after iteration i, all but the last of them computed. So what a sequence needs
    at an iteration follows from L and `end` alone: a block is full, and the next one needed, whenever i
    is `end` + 1 - L modulo the block size.
    """

    __slots__ = ("_block_tokens", "_by_residue", "_ends", "_families", "_tokens", "count", "iteration")

    def __init__(self, block_tokens: int) -> None:
        """Start empty, before iteration 1."""
        self.iteration = 0
        """Number of the last iteration."""
        self.count = 0
        """Sequences in it."""
        self._block_tokens = block_tokens
        self._tokens = 0
        self._by_residue: list[dict[Sequence, None]] = [{} for _ in range(block_tokens)]
        self._ends: list[tuple[int, int, Sequence]] = []
        self._families: dict[int, int] = {}

    @property
    def context_tokens(self) -> int:
        """Length of all texts so far, the tokens of the next iteration not included."""
        return self._tokens + self.count * self.iteration

    def generated(self, sequence: Sequence) -> int:
        """Length of an answer so far."""
        return sequence.text.output_tokens - sequence.end + self.iteration

    def computed(self, sequence: Sequence) -> int:
        """Tokens of a sequence, decoding or not, that are in the KV cache."""
        if sequence.end == NOT_DECODING:
            return sequence.computed
        return sequence.text.prompt_tokens + self.generated(sequence) - 1

    def join(self, sequence: Sequence) -> None:
        """Add a sequence, all tokens of which but the last are computed."""
        text = sequence.text
        sequence.end = self.iteration + text.output_tokens - sequence.generated
        self.count += 1
        self._tokens += text.tokens - sequence.end
        self._by_residue[(sequence.end + 1 - text.tokens) % self._block_tokens][sequence] = None
        heappush(self._ends, (sequence.end, sequence.order, sequence))
        self._families[text.family] = self._families.get(text.family, 0) + 1

    def leave(self, sequence: Sequence) -> None:
        """Remove a sequence and settle how far it has come."""
        text, end = sequence.text, sequence.end
        sequence.generated = text.output_tokens - end + self.iteration
        sequence.computed = text.prompt_tokens + sequence.generated - 1
        self.count -= 1
        self._tokens -= text.tokens - end
        del self._by_residue[(end + 1 - text.tokens) % self._block_tokens][sequence]
        sequence.end = NOT_DECODING
        if self._families[text.family] == 1:
            del self._families[text.family]
        else:
            self._families[text.family] -= 1

    def at_boundary(self, iteration: int) -> Collection[Sequence]:
        """Sequences, in batch order, whose blocks are just full after that iteration."""
        return self._by_residue[iteration % self._block_tokens]

    def has_family(self, family: int) -> bool:
        """Whether a text of this family is being decoded."""
        return family in self._families

    def iterations_to_end(self) -> int:
        """Iterations until the first sequence ends; there must be one."""
        ends = self._ends
        while ends[0][2].end != ends[0][0]:
            heappop(ends)
        return ends[0][0] - self.iteration

    def iterations_within(self, blocks: int, iterations: int) -> int:
        """Count the iterations, up to `iterations`, that take at most so many blocks after the first."""
        cycles = blocks // self.count
        left = blocks - cycles * self.count
        done = cycles * self._block_tokens + 1
        while done < iterations:
            left -= len(self._by_residue[(self.iteration + done) % self._block_tokens])
            if left < 0:
                return done
            done += 1
        return iterations

    def pop_ended(self) -> list[Sequence]:
        """Remove the sequences that the last iteration ended; in batch order."""
        ended, ends = [], self._ends
        while ends and ends[0][0] <= self.iteration:
            end, _order, sequence = heappop(ends)
            if sequence.end == end:
                self.leave(sequence)
                ended.append(sequence)
        return ended
