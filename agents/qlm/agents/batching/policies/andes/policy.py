"""The policy Andes: which requests to serve until the next decision."""

from typing import Final

import numpy as np

from qlm.agents.batching.decision import Decision
from qlm.agents.batching.packing import Packing
from qlm.agents.batching.policies.andes.gains import Objective, gains
from qlm.agents.batching.policies.andes.greedy import best_batch, with_cap
from qlm.agents.batching.policies.andes.sizes import HIGH_WATER, batch_sizes, limited, strictest_rate
from qlm.agents.batching.readership import readership
from qlm.agents.batching.room import room_to_choose
from qlm.agents.batching.step_time import step_time
from qlm.agents.batching.view import Ints, Machine, Pace, View
from qlm.domain.ids import RequestId

PREEMPTIONS_PER_REQUEST_MAX: Final = 1.0
"""The paper's P (section 6.5: flat from 0.4 on)."""

ITERATIONS_MIN: Final = 50
"""Least time to look forward, iterations (section 6.5: insensitive from 50 on)."""


STAY_S: Final = 1.0
"""Least time that a request stays once it is admitted (ours). Else requests that are alike take turns token
by token, since with its first one each falls behind the others, and the cap is soon used up."""

QUANTUM_S: Final = 0.1
"""Least time between two decisions (ours). The paper decides at each iteration; its own take that long."""


class Andes:
    """Serve every request; while memory or speed limits the batch, those that gain most per block.

    It remembers since when each request is inside.
    """

    def __init__(
        self,
        *,
        objective: Objective = Objective.AVERAGE,
        preemptions_max: float = PREEMPTIONS_PER_REQUEST_MAX,
        stay_s: float = STAY_S,
        quantum_s: float = QUANTUM_S,
    ) -> None:
        """Begin without a request.

        Args:
            objective: What the batch is chosen for.
            preemptions_max: Cap on the mean number of preemptions per request.
            stay_s: Least time that a request stays once it is admitted.
            quantum_s: Least time between two decisions.
        """
        self._objective, self._preemptions_max = objective, preemptions_max
        self._stay_s, self._quantum_s = stay_s, quantum_s
        self._since_s: dict[RequestId, float] = {}

    def decide(self, view: View) -> Decision:
        """Return the best batch while something limits it, else all requests as first come, first served."""
        self._remember(view)
        readers, time = readership(view), step_time(view)
        strictest, running = strictest_rate(readers), len(self._since_s)
        step_s = time.s(max(1, running))
        if not limited(view, strictest):
            order = np.argsort(view.outside, kind="stable")
            iterations = 1 if running < len(view.ids) else _iterations_to_the_mark(view.machine, running)
            return self._decision(view, order, iterations * step_s, skips=False)
        view = self._pinning_new(view)
        # Those inside need no room for growth; who comes in leaves a block per request (ours).
        packing = Packing(view, leaves=view.outside)
        sizes = batch_sizes(packing.needed, view.machine, time, strictest)
        steps_s = np.array([time.s(size) for size in sizes])
        gain = gains(view, readers, steps_s, _forward_s(view.pace, step_s), self._objective)
        rows, priority = best_batch(view, packing, sizes, gain)
        rows = with_cap(view, packing, rows, priority, self._preemptions_max)
        return self._decision(view, rows, step_s, skips=True)

    def room(self, view: View) -> int:
        """Return how many more requests the engine may have to choose from."""
        return room_to_choose(view)

    def _remember(self, view: View) -> None:
        since_s = self._since_s
        inside = set(map(view.ids.__getitem__, view.place.nonzero()[0].tolist()))
        for id in since_s.keys() - inside:
            del since_s[id]
        since_s.update(dict.fromkeys(inside - since_s.keys(), view.now_s))

    def _pinning_new(self, view: View) -> View:
        """Return the view with those pinned who were admitted too recently, if all of them fit."""
        after_s = view.now_s - self._stay_s
        new = {id for id, since_s in self._since_s.items() if since_s > after_s}
        if not new:
            return view
        pinned = view.pinned | np.fromiter(map(new.__contains__, view.ids), np.bool_, len(view.ids))
        fit = int(view.needed_blocks[pinned].sum()) <= view.machine.kv_blocks
        return view._replace(pinned=pinned) if fit else view

    def _decision(self, view: View, rows: Ints, after_s: float, *, skips: bool) -> Decision:
        ids = tuple(map(view.ids.__getitem__, rows.tolist()))
        return Decision(run=ids, skips=skips, again_s=view.now_s + max(after_s, self._quantum_s))


def _forward_s(pace: Pace, step_s: float) -> float:
    """Return the time to look forward: the mean life of a request (section 4.1).

    Before the first end it is the time that a mean answer takes (ours).
    """
    return max(pace.life_s or pace.answer_mean * step_s, ITERATIONS_MIN * step_s)


def _iterations_to_the_mark(machine: Machine, running: int) -> int:
    """Return after how many iterations the KV cache may reach the high-water mark: no decision before."""
    free = HIGH_WATER * machine.kv_blocks - (machine.kv_blocks - machine.free_blocks)
    return max(1, int((free / max(1, running) - 1) * machine.block_tokens))
