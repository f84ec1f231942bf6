"""Quality of experience of all requests after the next `dt`, if served and if not (Andes, section 4.1).

Equation 1 at the time h = now + dt: what was digested by h, over what would have been without lateness. Both
areas end at h. If they ended with the last token or with the end of reading, waiting would gain by
withholding tokens (streaming.md). Token k is digested from s_k = e_k + L_k on, so the area of n tokens that
are read by h is, without a loop,

    sum over k of (h - s_k - 1 / 2r) = n (h - e_0) - n^2 / 2r - sum of L_k,

and u tokens that are not read yet at h take u^2 / 2r less from it.
"""

from typing import NamedTuple

import numpy as np

from qlm.agents.batching.clipping import clipped
from qlm.agents.batching.readership import Readership
from qlm.agents.batching.view import Floats, Ints

PERFECT: float = 1 - 1e-6
"""Quality from which it counts as 1: the rest is rounding."""

_LEAST_S = 1e-9


class Delivered(NamedTuple):
    """Tokens and lateness of each request at some time; any shape that ends with the rows."""

    tokens: Floats
    late_s: Floats
    late_sum_s: Floats


def delivered(readers: Readership, generated: Ints) -> Delivered:
    """Return what has been delivered: the state of a request that is not served."""
    return Delivered(generated.astype(np.float64), readers.late_s, readers.late_sum_s)


def served(readers: Readership, now: Delivered, begin_s: Floats, step_s: Floats, until_s: float) -> Delivered:
    """Return what is delivered until `until_s` if each request is served, one token per iteration.

    Args:
        readers: The readers, shape (rows).
        now: What they have.
        begin_s: When each is restored, shape (rows); its first token comes an iteration later.
        step_s: Duration of an iteration, shape (sizes, 1).
        until_s: End.

    Returns:
        Columns of shape (sizes, rows).
    """
    tokens = clipped((until_s - begin_s) / step_s, 0.0, readers.answer - now.tokens)
    first_s = begin_s + step_s - (readers.first_due_s + now.tokens / readers.rate)
    # Lateness of new token j is max(late, first + j slope): constant up to a crossing, and a line from there.
    slope_s = np.maximum(_LEAST_S, step_s - 1 / readers.rate)
    level = clipped((now.late_s - first_s) / slope_s, 0.0, tokens)
    rising = tokens - level
    sums_s = now.late_s * level + rising * (first_s + slope_s * (tokens + level) / 2)
    late_s = np.where(tokens > 0, np.maximum(now.late_s, first_s + slope_s * tokens), now.late_s)
    return Delivered(now.tokens + tokens, late_s, now.late_sum_s + sums_s)


class Horizon:
    """The time at which both areas end."""

    def __init__(self, readers: Readership, at_s: float) -> None:
        """Take the readers, and the time."""
        self._rate = readers.rate
        self._since_s = at_s - readers.first_due_s
        self._half_s = 0.5 / readers.rate
        due = clipped(self._since_s * readers.rate, 0.0, readers.answer)
        wanted = due * (self._since_s - due * self._half_s)
        self._wanted = np.maximum(wanted, _LEAST_S)
        self._none_due = wanted <= _LEAST_S

    def quality(self, given: Delivered) -> Floats:
        """Return equation 1, from 0 to 1; 1 while no token is due."""
        tokens, half_s = given.tokens, self._half_s
        unread = clipped((given.late_s - self._since_s) * self._rate + tokens, 0.0, tokens)
        digested = tokens * (self._since_s - tokens * half_s) - given.late_sum_s + unread * unread * half_s
        return np.maximum(clipped(digested / self._wanted, 0.0, 1.0), self._none_due)
