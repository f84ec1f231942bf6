"""Choice of the iterations to time, over the whole range of an engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from qlm.domain.errors import InvalidValueError
from qlm.domain.fleet import EngineCapacity

DROPPED_TOKENS: Final = 4
"""First tokens of an answer that are not timed: other requests of the batch may still be in prefill."""

_LEFT_TOKENS: Final = 64
"""Tokens of context kept free beside the longest prompt; also the smallest longest prompt accepted."""
_KV_SHARE_MAX: Final = 0.9
_TOKENS_PER_PROMPT: Final = 48
"""Tokens that a running decode gets while one point beside it is timed, samples and tries included."""
_LENGTH_MIN: Final = 16

_BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_QUICK_BATCHES: Final = (1, 8, 32)
_CONTEXTS: Final = (128, 512, 2048)
_QUICK_CONTEXTS: Final = (128, 1024)
_LENGTHS: Final = (16, 32, 64, 96, 128, 192, 256, 512, 1024)
_QUICK_LENGTHS: Final = (16, 64, 128, 256, 512)
"""Prompts timed alone, beside the longest that fits an iteration, and its half."""
_TOGETHER: Final = tuple((b, n) for b in (2, 4, 8, 16, 32) for n in (16, 64, 256, 1024))
_QUICK_TOGETHER: Final = ((4, 64), (4, 256), (16, 16), (16, 64))
_MIXED_DECODES: Final = (8, 32, 128)
_MIXED_LENGTHS: Final = (128, 1024)
_CHUNKS_MAX: Final = 64
_QUICK_CHUNKS_MAX: Final = 4
_REPEATS: Final = 5
_QUICK_REPEATS: Final = 3
"""The speed of a shared machine varies by 20 % for seconds at a time: three measurements were 10 % off too
often."""


class Cell(NamedTuple):
    """Requests that decode together, and prompts that arrive beside them one point after the other.

    Attributes:
        decodes: Requests that decode.
        context: Tokens of each one's prompt.
        prompts: Pairs of number and tokens of prompts.
    """

    decodes: int
    context: int
    prompts: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Iterations to time.

    Attributes:
        cells: What runs together.
        repeats: Measurements per point, spread over the run; their mean is used.
        decode_tokens: Timed tokens per request that decodes.
        batched_tokens_max: Largest number of tokens in one iteration.
    """

    cells: tuple[Cell, ...]
    repeats: int
    decode_tokens: int
    batched_tokens_max: int

    @property
    def measurements(self) -> int:
        """Total number of measurements."""
        return self.repeats * sum(1 + len(cell.prompts) for cell in self.cells)


def choose_grid(capacity: EngineCapacity, *, quick: bool, batched_tokens_max: int) -> Grid:
    """Choose batches, contexts and prompts over the whole range of the engine.

    Args:
        capacity: Limits of the engine.
        quick: Choose few points.
        batched_tokens_max: Its `--max-num-batched-tokens`.

    Raises:
        InvalidValueError: The engine is too small to be measured.
    """
    choice = _Choice(capacity, 24 if quick else 64, batched_tokens_max)
    if min(choice.room, batched_tokens_max) < _LEFT_TOKENS:
        raise InvalidValueError("context", capacity.context_tokens, "room for prompts of 64 tokens and more")
    cells = [Cell(1, _LENGTH_MIN, choice.alone(quick=quick))]
    for batch in sorted({min(b, capacity.seqs_max) for b in (_QUICK_BATCHES if quick else _BATCHES)}):
        prompts = tuple((1, n) for n in _MIXED_LENGTHS if batch in _MIXED_DECODES)
        cells += choice.beside(batch, prompts, _QUICK_CONTEXTS if quick else _CONTEXTS)
    return Grid(
        cells=tuple(cells),
        repeats=_QUICK_REPEATS if quick else _REPEATS,
        decode_tokens=choice.decode_tokens,
        batched_tokens_max=batched_tokens_max,
    )


def answer_tokens(cell: Cell, decode_tokens: int, batched_tokens_max: int) -> int:
    """Return a `max_tokens` at which all requests of a cell decode until its last point is timed."""
    own = -(-cell.decodes * cell.context // batched_tokens_max)
    beside = sum(_TOKENS_PER_PROMPT + 3 * (b * n // batched_tokens_max) for b, n in cell.prompts)
    return decode_tokens + DROPPED_TOKENS + own + beside + 2


@dataclass(frozen=True, slots=True)
class _Choice:
    """What fits an engine."""

    capacity: EngineCapacity
    decode_tokens: int
    batched_tokens_max: int

    @property
    def room(self) -> int:
        """Tokens of the longest prompt."""
        half = int(_KV_SHARE_MAX * self.capacity.kv_tokens) // 2
        return min(self.capacity.context_tokens - self.decode_tokens - _LEFT_TOKENS, half)

    def alone(self, *, quick: bool) -> tuple[tuple[int, int], ...]:
        """Return prompts to time beside a single decode: alone, together, and longer than an iteration."""
        whole = self.batched_tokens_max - 1
        longest = min(self.room, whole)
        lengths = {n for n in (_QUICK_LENGTHS if quick else _LENGTHS) if n < longest}
        single = [(1, n) for n in sorted({*lengths, max(_LENGTH_MIN, longest // 2), longest})]
        together = [
            (b, n)
            for b, n in (_QUICK_TOGETHER if quick else _TOGETHER)
            if b * n <= whole and n <= longest and b + 3 <= self.capacity.seqs_max
        ]
        chunked = min(self.room, whole * (_QUICK_CHUNKS_MAX if quick else _CHUNKS_MAX))
        long = [(1, chunked)] if chunked > whole else []
        chosen = (*single, *together, *long)
        return chosen if self._fits(Cell(1, _LENGTH_MIN, chosen)) else tuple(single[:1])

    def beside(self, batch: int, prompts: Sequence[tuple[int, int]], contexts: Sequence[int]) -> list[Cell]:
        """Return cells of a batch at each context; the longest that fits replaces longer ones."""
        fitting = tuple((b, n) for b, n in prompts if n + batch <= self.batched_tokens_max and n <= self.room)
        if batch + 2 > self.capacity.seqs_max:
            fitting = ()
        cells: dict[int, Cell] = {}
        for wanted in contexts:
            context = min(wanted, self._longest(batch, fitting))
            if context >= _LENGTH_MIN:
                cells[context] = Cell(batch, context, fitting)
        if len(cells) == 1 and (only := next(iter(cells))) >= 2 * _LENGTH_MIN:
            cells[only // 4] = Cell(batch, max(_LENGTH_MIN, only // 4), fitting)
        return [cell for cell in cells.values() if self._fits(cell)]

    def _longest(self, batch: int, prompts: tuple[tuple[int, int], ...]) -> int:
        """Return the longest context at which a batch fits the KV cache beside its prompts."""
        beside = sum(b * n for b, n in prompts)
        each = (int(_KV_SHARE_MAX * self.capacity.kv_tokens) - beside) // batch
        some = answer_tokens(Cell(batch, each, prompts), self.decode_tokens, self.batched_tokens_max)
        return min(self.room, each - some, self.capacity.context_tokens - some - 1)

    def _fits(self, cell: Cell) -> bool:
        some = answer_tokens(cell, self.decode_tokens, self.batched_tokens_max)
        tokens = cell.context + some
        most = max((b * n for b, n in cell.prompts), default=0)
        kv_tokens = cell.decodes * tokens + most + (self.batched_tokens_max if most else 0)
        return tokens < self.capacity.context_tokens and kv_tokens <= self.capacity.kv_tokens
