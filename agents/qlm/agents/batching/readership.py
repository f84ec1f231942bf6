"""Every request as a reader, for policies that know nothing but readers (ours)."""

from typing import Final, NamedTuple

import numpy as np

from qlm.agents.batching.view import FIRST_TOKEN_ONLY, NO_READER, Flags, Floats, View

SLOW_TOKENS_PER_S: Final = 1.0
"""Pace of a reader whose objective ends with the first token."""


class Readership(NamedTuple):
    """Readers, one per row. A token k of a row is due at `first_due_s + k / rate`.

    Attributes:
        reads: The row counts as a reader. Else its other columns mean nothing, and are finite.
        rate: Pace, tokens per second; positive.
        first_due_s: When the first token is due.
        late_s: Lateness of the last token.
        late_sum_s: Sum of the lateness of all tokens.
        read_end_s: When what was delivered is read; the due time of the first token before it.
        answer: Expected tokens of the whole answer.
    """

    reads: Flags
    rate: Floats
    first_due_s: Floats
    late_s: Floats
    late_sum_s: Floats
    read_end_s: Floats
    answer: Floats


def readership(view: View) -> Readership:
    """Return the requests as readers.

    A reader is itself, and a deadline beside it is ignored. A request with a deadline alone reads evenly from
    its arrival to the deadline: a slow reader. One whose objective ends with its first token reads
    `SLOW_TOKENS_PER_S`. A request without an objective is none. Hosts count no lateness without a reader.
    """
    by_deadline = (view.rate == NO_READER) & np.isfinite(view.deadline_s)
    reads = np.isfinite(view.ttft_s) | by_deadline
    answer = np.asarray(view.generated + np.maximum(1.0, view.left_mean), np.float64)
    rate = np.where(view.rate == FIRST_TOKEN_ONLY, SLOW_TOKENS_PER_S, view.rate)
    rate = np.where(by_deadline, answer / np.maximum(1e-3, view.deadline_s - view.arrival_s), rate)
    rate = np.where(reads, rate, 1.0)
    token_s = 1 / rate
    first_due_s = view.arrival_s + np.where(by_deadline, token_s, np.where(reads, view.ttft_s, 0.0))
    read_end_s = first_due_s + view.generated * token_s + view.late_s
    return Readership(reads, rate, first_due_s, view.late_s, view.late_sum_s, read_end_s, answer)
