"""Durations of iterations of continuous batching, from a profile, in exact integers."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import numpy as np

from qlm.rct_estimator.profiles.iteration import IterationTime
from qlm.rct_estimator.profiles.profile import Profile
from qlm.simulator.engine.decode_set import DecodeSet
from qlm.simulator.engine.sequence import Sequence

FRACTION_BITS: Final = 30
"""Times inside the engine are whole ticks of 2^-30 ns.

Rounding a coefficient to ticks moves an iteration over a million tokens by less than 0.001 ns.
"""

_TICKS_PER_MS: Final = 1_000_000 << FRACTION_BITS
_LEAST_TICKS: Final = 1 << FRACTION_BITS
"""Shortest iteration, a nanosecond, so that each ends later than the one before."""


class StepTimes:
    """Durations of a profile's iterations, with every coefficient rounded to ticks once.

    The formula is that of `IterationTime`.
    """

    __slots__ = ("_admission", "_kv", "_kv_mixed", "_linear", "_pair_half", "_sequence")

    def __init__(self, profile: Profile, tokens_max: int) -> None:
        """Round the coefficients for iterations of up to `tokens_max` tokens."""
        of = profile.iteration
        self._linear = _linear_ticks(of, tokens_max)
        self._kv = round(of.kv_ms * _TICKS_PER_MS)
        self._kv_mixed = round(of.kv_beside_prompts_ms * _TICKS_PER_MS)
        self._sequence = round(of.sequence_ms * _TICKS_PER_MS)
        self._pair_half = round(of.square_ms / 2 * _TICKS_PER_MS)
        self._admission = round(of.admission_ms * _TICKS_PER_MS)

    def ticks(
        self,
        prefills: int,
        prefill_tokens: int,
        double_pairs: int,
        decodes: int,
        context_tokens: int,
        admitted: int = 0,
    ) -> int:
        """Return the duration of one iteration.

        Args:
            prefills: Requests with prompt tokens in it.
            prefill_tokens: Their prompt tokens in it, in total.
            double_pairs: Sum over these chunks of new (2 position + new), twice `pairs_of`.
            decodes: Requests that get one more token.
            context_tokens: Total length of their texts.
            admitted: Requests with prompt tokens in it that were never in the batch before.

        Returns:
            Ticks; 0 for an empty iteration.
        """
        if not prefills:
            return self.decode_ticks(decodes, context_tokens) if decodes else 0
        fixed = self._linear[prefill_tokens + decodes] + self._sequence * (prefills + decodes)
        fixed += self._admission * admitted
        return fixed + self._kv_mixed * context_tokens + self._pair_half * double_pairs

    def mixed_ticks(self, chunks: Iterable[tuple[Sequence, int]], decoding: DecodeSet, admitted: int) -> int:
        """Return the duration of an iteration with chunks.

        A sequence with an answer and one missing token is a decode.

        Args:
            chunks: Sequences with the number of prompt tokens computed of each.
            decoding: The other sequences.
            admitted: As in `ticks`.
        """
        decodes, context_tokens = decoding.count, decoding.context_tokens
        prefills = prefill_tokens = double_pairs = 0
        for sequence, new in chunks:
            if sequence.generated and sequence.missing == 1:
                decodes += 1
                context_tokens += sequence.tokens
            else:
                prefills += 1
                prefill_tokens += new
                double_pairs += new * (2 * sequence.computed + new)
        return self.ticks(prefills, prefill_tokens, double_pairs, decodes, context_tokens, admitted)

    def decode_ticks(self, decodes: int, context_tokens: int) -> int:
        """Return the duration of an iteration that only decodes, one sequence or more."""
        return self._linear[decodes] + self._sequence * decodes + self._kv * context_tokens

    def growth_ticks(self, decodes: int) -> int:
        """Return the growth of the next iteration, in which each text is one token longer."""
        return self._kv * decodes


@lru_cache(maxsize=64)
def _linear_ticks(of: IterationTime, tokens_max: int) -> tuple[int, ...]:
    """Return the time of the host and of the linear layers by the number of tokens; engines share it."""
    linear_ms = of.host_ms + of.linears(range(tokens_max + 1))
    rounded: list[float] = np.maximum(_LEAST_TICKS, np.rint(linear_ms * _TICKS_PER_MS)).tolist()
    return tuple(int(ticks) for ticks in rounded)
