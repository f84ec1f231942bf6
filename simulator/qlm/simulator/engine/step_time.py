"""How long one iteration of continuous batching takes, from a profile, in exact integers."""

from typing import Final

from qlm.rct_estimator.profile import Profile

FRACTION_BITS: Final = 30
"""Times inside the engine are whole ticks of 2^-30 ns.

Rounding a coefficient to ticks moves an iteration over a million tokens by less than 0.001 ns.
"""

_TICKS_PER_MS: Final = 1_000_000 << FRACTION_BITS
_LEAST_TICKS: Final = 1 << FRACTION_BITS
"""No iteration takes less than a nanosecond, so that each ends later than the one before it."""


class StepTimes:
    """The times of a profile's iterations.

    Equations 14 and 15 of SLO-aware annealing, each with the sum over the batch of what it has per
    request. An iteration that computes prompts and decodes reads the weights once, so the smaller of
    the two constants counts once only.

    For B requests with C tokens in all, the equations' average length is C/B, so a token costs
    alpha + gamma/B and the iteration beta B + delta besides. Both are rounded to ticks once for each B.
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
        """Time one iteration.

        Args:
            prefills: Requests with prompt tokens in it.
            prefill_tokens: Prompt tokens computed in it, in all.
            decodes: Requests that get one token more.
            context_tokens: Length of their texts, in all.

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
        """Time by which the next iteration of a batch is longer, each text being one token longer."""
        return self._decode[decodes][1] * decodes
