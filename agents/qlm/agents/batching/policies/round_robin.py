"""Round robin: equal turns, whatever the objectives (baseline of Andes, section 6.1)."""

from typing import Final

import numpy as np

from qlm.agents.batching.decision import Decision
from qlm.agents.batching.packing import packed
from qlm.agents.batching.policies.iterations import step_s
from qlm.agents.batching.view import Floats, View
from qlm.domain.ids import RequestId

QUANTUM_ITERATIONS: Final = 50
"""Length of a turn (Andes, section 6.1), at the smoothed duration of an iteration."""


class RoundRobin:
    """Let each request run for a turn, then yield to those that wait, the longest wait first.

    A request whose turn has ended goes on if its blocks are not needed. Of several, the one that has run the
    longest yields first.
    """

    def __init__(self) -> None:
        self._since_s: dict[RequestId, tuple[bool, float]] = {}
        self._chosen_s: dict[RequestId, float] = {}

    def decide(self, view: View) -> Decision:
        """Return who is within a turn, then who waits, then whose turn has ended, as far as they fit."""
        since_s = self._watch(view)
        turn_s = QUANTUM_ITERATIONS * step_s(view)
        inside = view.inside
        # A turn that ends within half an iteration ends now: the host asks between iterations.
        ends_s = since_s + turn_s - step_s(view) / 2
        ended = inside & (ends_s <= view.now_s)
        stage = np.where(inside & ~ended, 0, np.where(inside, 2, 1))
        order = np.lexsort((view.arrival_s, np.where(ended, -since_s, since_s), stage))
        run = packed(view, order.tolist(), skips=True)
        self._chosen_s = dict.fromkeys(run, view.now_s)
        again_s = None if len(run) == len(view.ids) else view.now_s + _next_end_s(view, since_s, turn_s)
        return Decision(run=tuple(run), skips=True, again_s=again_s)

    def room(self, view: View) -> int:
        """Return what is missing to two full batches: with one, there is none to choose from."""
        return max(0, 2 * view.machine.seqs_max - len(view.ids))

    def _watch(self, view: View) -> Floats:
        """Return since when each request is where it is: in the batch, or outside."""
        known, now_s = self._since_s, view.now_s
        inside: list[bool] = view.inside.tolist()
        arrived_s: list[float] = view.arrival_s.tolist()
        self._since_s = {}
        for request, within, arrival_s in zip(view.ids, inside, arrived_s, strict=True):
            before, since_s = known.get(request, (False, arrival_s))
            if before != within:
                # Who came in did so when it was chosen.
                since_s = self._chosen_s.get(request, now_s) if within else now_s
            self._since_s[request] = within, since_s
        return np.array([since_s for _, since_s in self._since_s.values()], np.float64)


def _next_end_s(view: View, since_s: Floats, turn_s: float) -> float:
    """Return how long until a turn ends; a whole turn if none is in progress."""
    left_s = since_s[view.inside] + turn_s - view.now_s
    coming = left_s[left_s > step_s(view) / 2]
    return float(coming.min()) if coming.size else turn_s
