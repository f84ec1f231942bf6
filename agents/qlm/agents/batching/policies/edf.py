"""Earliest deadline first, with a deadline for each token of a reader."""

from typing import Final

import numpy as np

from qlm.agents.batching.decision import Decision
from qlm.agents.batching.packing import packed
from qlm.agents.batching.view import FIRST_TOKEN_ONLY, NO_READER, Floats, View

QUANTUM_S: Final = 1.0
"""Time between decisions without an event. The next token of a reader is due later with each one delivered,
so the order changes all the time; below a second, aborts and resumptions cost more than they gain."""


class EarliestDeadlineFirst:
    """Run who is due first: by the deadline of the answer, or of the next token of the reader; batch last.

    It asks neither how long an answer still takes nor whether its deadline can still be met. In overload, it
    spends the instance on what is late already (streaming.md has the figures).
    """

    def decide(self, view: View) -> Decision:
        """Return the first of the order that fit together; of equal deadlines, who runs goes first."""
        order = np.lexsort((view.arrival_s, ~view.inside, due_s(view)))
        run = packed(view, order.tolist(), skips=True)
        again_s = None if len(run) == len(view.ids) else view.now_s + QUANTUM_S
        return Decision(run=tuple(run), skips=True, again_s=again_s)

    def room(self, view: View) -> int:
        """Return what is missing to two full batches: with one, there is none to choose from."""
        return max(0, 2 * view.machine.seqs_max - len(view.ids))


def due_s(view: View) -> Floats:
    """Return when each request is due: its answer, or the next token of its reader; inf for batch."""
    new = view.generated == 0
    reads = (view.rate != NO_READER) & (new | (view.rate != FIRST_TOKEN_ONLY))
    token_s = np.where(new, view.arrival_s + view.ttft_s, view.read_end_s)
    return np.minimum(view.deadline_s, np.where(reads, token_s, np.inf))
