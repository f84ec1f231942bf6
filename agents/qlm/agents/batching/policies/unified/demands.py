"""What each request still needs: seconds of slack, and tokens per second from now on.

Every objective is a row of deadlines of tokens (smooth goodput, equations 1 to 4), so one measure compares
all of them:

    reader            slack = read end - now; before the first token, arrival + ttft - now; pace = rate
    deadline          slack = deadline - now - n' step;  pace = n / (deadline - now)
    first token only  a reader whose pace is 0; after the first token, no objective
    batch             slack = infinity, pace = 0

with n the tokens to come, estimated on the safe side, and n' hardly ever exceeded. A request with both a
reader and a deadline takes the tighter one.
"""

from typing import Final, NamedTuple

import numpy as np

from qlm.agents.batching.policies.iterations import step_s
from qlm.agents.batching.view import FIRST_TOKEN_ONLY, NO_READER, Flags, Floats, View

DEVIATIONS: Final = 4.0
"""Standard deviations above the mean that an answer with a deadline may have: one of a hundred has more. A
deadline costs no more work if it is served earlier. With n in its place, answers longer than n that had
waited missed it: on mixed work 0.90 of deadlines were met instead of 0.93 with two deviations, and with four
0.953 instead of 0.945 (docs/batch-policy-unified.md)."""


class Demands(NamedTuple):
    """Columns, one entry per request of the view.

    Attributes:
        slack_s: Time until it must run again; negative if it is late; inf without an objective left.
        pace: Tokens per second that it needs from now on.
        left: Tokens to come, on the safe side.
        reads: A reader waits for its next token.
        timed: Its deadline can be met, and is tighter than its reader.
        idle_s: Idle time of its reader so far, the present pause included.
    """

    slack_s: Floats
    pace: Floats
    left: Floats
    reads: Flags
    timed: Flags
    idle_s: Floats


def demands(view: View) -> Demands:
    """Return what each request needs."""
    left = tokens_left(view)
    reads, reader_s = _readers(view)
    within_s = view.deadline_s - view.now_s
    service_s = left * step_s(view)
    # Hopeless from half of the service time on: then even twice the pace would miss the deadline.
    hopeful = np.isfinite(within_s) & (within_s >= service_s / 2) & (within_s > 0)
    deadline_s = np.where(hopeful, within_s - most_left(view) * step_s(view), np.inf)
    needed = np.where(hopeful, left / np.where(hopeful, within_s, 1.0), 0.0)
    return Demands(
        slack_s=np.minimum(reader_s, deadline_s),
        pace=np.maximum(np.where(reads, view.rate, 0.0), needed),
        left=left,
        reads=reads,
        timed=hopeful & (deadline_s <= reader_s),
        idle_s=np.where(reads, view.late_s + np.maximum(0.0, -reader_s), 0.0),
    )


def tokens_left(view: View) -> Floats:
    """Return max(m / 2, 1.5 m - generated), with m the mean answer: half an answer more than is likely.

    It is no more than the limit of the request leaves.
    """
    mean = max(1.0, view.pace.answer_mean)
    likely = np.maximum(mean / 2, 1.5 * mean - view.generated)
    return np.asarray(np.minimum(likely, view.left_max), np.float64)


def most_left(view: View) -> Floats:
    """Return what hardly any answer exceeds: max(m / 2, m + 4 sd - generated), with sd by the moments.

    It is no more than the limit of the request leaves.
    """
    pace = view.pace
    mean = max(1.0, pace.answer_mean)
    deviation = max(0.0, pace.answer_square_mean - mean**2) ** 0.5
    long = np.maximum(mean / 2, mean + DEVIATIONS * deviation - view.generated)
    return np.asarray(np.minimum(long, view.left_max), np.float64)


def _readers(view: View) -> tuple[Flags, Floats]:
    """Return whose next token a reader waits for, and in how many seconds; inf for the others."""
    new = view.generated == 0
    reads = (view.rate != NO_READER) & (new | (view.rate != FIRST_TOKEN_ONLY))
    due_s = np.where(new, view.arrival_s + view.ttft_s, view.read_end_s)
    return reads, np.where(reads, due_s - view.now_s, np.inf)
