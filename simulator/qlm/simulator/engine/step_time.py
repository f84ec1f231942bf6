"""Durations of iterations of continuous batching, from a profile, in exact integers."""

from typing import Final

from qlm.rct_estimator.profile import Profile

FRACTION_BITS: Final = 30
"""Times inside the engine are whole ticks of 2^-30 ns.

Rounding a coefficient to ticks moves an iteration over a million tokens by less than 0.001 ns.
"""

_TICKS_PER_MS: Final = 1_000_000 << FRACTION_BITS
_LEAST_TICKS: Final = 1 << FRACTION_BITS
"""Shortest iteration, a nanosecond, so that each ends later than the one before."""


class StepTimes:
    """Durations of a profile's iterations.

    Equations 14 and 15 of SLO-aware annealing, with sums over the batch for the terms per request. An
    iteration with prompts and decodes reads the weights once, so the smaller of the two constants counts once
    only.

    For B requests with C tokens in total, the equations' average length is C/B. So a token costs alpha +
    gamma/B, and the iteration costs beta B + delta in addition. Both are rounded to ticks once for each B.
    """

    __slots__ = ("_decode", "_prefill", "_shared")

    def __init__(self, profile: Profile, seqs_max: int) -> None:
        """Round the coefficients of all batches of up to `seqs_max` requests."""
        self._prefill, self._decode = (
            [(0, 0)]
            + [
                (
                    max(_LEAST_TICKS, round((of.beta * batch + of.delta) * _TICKS_PER_MS)),
                    round((of.alpha + of.gamma / batch) * _TICKS_PER_MS),
                )
                for batch in range(1, seqs_max + 1)
            ]
            for of in (profile.prefill, profile.decode)
        )
        self._shared = round(min(profile.prefill.delta, profile.decode.delta) * _TICKS_PER_MS)

    def ticks(self, *, prefills: int, prefill_tokens: int, decodes: int, context_tokens: int) -> int:
        """Return the duration of one iteration.

        Args:
            prefills: Requests with prompt tokens in it.
            prefill_tokens: Their prompt tokens in it, in total.
            decodes: Requests that get one more token.
            context_tokens: Total length of their texts.

        Returns:
            Ticks; 0 for an empty iteration.
        """
        fixed, token = self._decode[decodes]
        ticks = fixed + token * context_tokens
        if prefills:
            fixed, token = self._prefill[prefills]
            ticks += fixed + token * prefill_tokens - (self._shared if decodes else 0)
        return max(_LEAST_TICKS, ticks) if prefills or decodes else 0

    def growth_ticks(self, decodes: int) -> int:
        """Return the growth of the next iteration, in which each text is one token longer."""
        return self._decode[decodes][1] * decodes
