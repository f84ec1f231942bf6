"""Results of a benchmark run: each request that was sent, with the arrival of each part of its answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

FloatArray = npt.NDArray[np.float64]

TOKENS_MAX: Final = 100_000_000
"""Most tokens of a prompt or an answer: more than any context has, so a larger count is a mistake."""

TokenCount = Annotated[int, Field(ge=0, le=TOKENS_MAX)]
"""A count of tokens in a model of a file."""


class Chunk(NamedTuple):
    """Part of an answer: its arrival, seconds from the start of the run, and its tokens (0 or more)."""

    at_s: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A request and its answer. Times are seconds from the start of the run.

    Attributes:
        scheduled_s: Arrival by the schedule: all latencies of QLM count from it.
        sent_s: Real time of sending; vLLM's latencies count from it.
        end_s: Last event of the answer, or the time at which the client gave up.
        chunks: Parts of the answer, in order.
        error: Cause of the failure; None for a complete answer.
        prompt_tokens: Input tokens, by the server if it says.
        asked_tokens: Length that was asked for; None if the answer could end earlier, or the file has none.
    """

    scheduled_s: float
    sent_s: float
    end_s: float
    chunks: tuple[Chunk, ...] = ()
    error: str | None = None
    prompt_tokens: int = 0
    asked_tokens: int | None = None

    @property
    def answered(self) -> bool:
        """True if the answer is complete and has a token."""
        return self.error is None and self.tokens > 0

    @property
    def tokens(self) -> int:
        """Tokens received."""
        return sum(chunk.tokens for chunk in self.chunks)

    @property
    def first_token_s(self) -> float:
        """Arrival of the first token; infinite without one."""
        return next((chunk.at_s for chunk in self.chunks if chunk.tokens), float("inf"))

    @property
    def last_token_s(self) -> float:
        """Arrival of the last token; infinite without one."""
        return next((chunk.at_s for chunk in reversed(self.chunks) if chunk.tokens), float("inf"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a benchmark.

    Attributes:
        requests: All requests that were sent, by scheduled arrival.
        counting: How the tokens of a chunk were counted, in words.
        seed: Seed of the schedule; None if the file has none.
        duration_s: Duration by the client that measured; None to take `span_s`.
    """

    requests: tuple[Sent, ...]
    counting: str
    seed: int | None = None
    duration_s: float | None = None

    @property
    def span_s(self) -> float:
        """Time from the first scheduled arrival to the last event, seconds."""
        begin_s = min(each.scheduled_s for each in self.requests)
        return max(1e-9, max(each.end_s for each in self.requests) - begin_s)

    def without(self, first: int) -> "Run":
        """Leave out the first requests by arrival; the duration of the client no longer applies."""
        if not first:
            return self
        return Run(requests=self.requests[first:], counting=self.counting, seed=self.seed)


def spread(tokens: int, times_s: Sequence[float]) -> tuple[Chunk, ...]:
    """Distribute tokens evenly over the chunks of an answer, the first in the first, the last in the last.

    Files that have one count for a whole answer do not say which chunk had more.
    """
    return tuple(map(Chunk, times_s, _shares(tokens, len(times_s))))


def _shares(tokens: int, chunks: int) -> list[int]:
    if tokens >= chunks:
        # Token t is in chunk t * chunks // tokens, so chunk c begins with token ceil(c * tokens / chunks).
        begins = [-(-chunk * tokens // chunks) for chunk in range(chunks + 1)] if chunks else [0]
        return [end - begin for begin, end in pairwise(begins)]
    shares = [0] * chunks
    for token in range(tokens):
        shares[round(token * (chunks - 1) / max(1, tokens - 1))] += 1
    return shares
