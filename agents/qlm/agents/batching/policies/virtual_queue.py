"""The order of the virtual queue: what the plan wants first runs first."""

import numpy as np

from qlm.agents.batching.decision import Decision
from qlm.agents.batching.packing import packed
from qlm.agents.batching.view import View


class VirtualQueueOrder:
    """Run by rank, within a rank who runs, then by arrival.

    Like the agent, it preempts only for a better rank: who runs keeps its blocks from all of equal rank. It
    knows no reader and no deadline; the plan that made the ranks does.
    """

    def decide(self, view: View) -> Decision:
        """Return the first of the order that fit together."""
        order = np.lexsort((view.arrival_s, ~view.inside, view.rank))
        # Who is inside leaves no room for growth: else it would be preempted though no request comes in.
        run = packed(view, order.tolist(), leaves=view.outside, skips=True)
        return Decision(run=tuple(run), skips=True)

    def room(self, view: View) -> int:
        """Return the free batch slots: the others keep their place in the virtual queue."""
        return max(0, view.machine.seqs_max - len(view.ids))
