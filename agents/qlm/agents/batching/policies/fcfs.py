"""First come, first served: vLLM's own rule."""

import numpy as np

from qlm.agents.batching.decision import Decision
from qlm.agents.batching.view import View


class FirstComeFirstServed:
    """Run what runs; admit the others in the engine's own order. It preempts no request by itself."""

    def decide(self, view: View) -> Decision:
        """Return all requests in the order of the view: those inside first."""
        order = np.argsort(~view.inside, kind="stable").tolist()
        return Decision(run=tuple([view.ids[row] for row in order]))

    def room(self, view: View) -> int:
        """Return the free batch slots: a request that cannot run yet waits in the global queue."""
        return max(0, view.machine.seqs_max - len(view.ids))
