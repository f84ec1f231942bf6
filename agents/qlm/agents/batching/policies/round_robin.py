"""Round robin: equal turns, whatever the objectives (baseline of Andes, section 6.1)."""

from typing import Final, NamedTuple

import numpy as np

from qlm.agents.batching.decision import Decision
from qlm.agents.batching.packing import packed
from qlm.agents.batching.policies.iterations import step_s
from qlm.agents.batching.view import View
from qlm.domain.ids import RequestId

QUANTUM_ITERATIONS: Final = 50
"""Length of a turn (Andes, section 6.1), at the smoothed duration of an iteration."""


class _Spell(NamedTuple):
    """Where a request is, since when, and its output tokens when it was last outside."""

    inside: bool
    since_s: float
    tokens: int


class RoundRobin:
    """Let each request run for a turn, then yield to those that wait, the longest wait first.

    A turn has at least one token (ours): else a text that takes longer to compute than a turn would be
    computed again and again. A request whose turn has ended goes on if its blocks are not needed. Of several,
    the one that has run the longest yields first.
    """

    def __init__(self) -> None:
        self._spells: dict[RequestId, _Spell] = {}
        self._chosen_s: dict[RequestId, float] = {}

    def decide(self, view: View) -> Decision:
        """Return who is within a turn, then who waits, then whose turn has ended, as far as they fit."""
        self._watch(view)
        spells = self._spells.values()
        since_s = np.array([spell.since_s for spell in spells], np.float64)
        computes = view.generated <= np.array([spell.tokens for spell in spells], np.int64)
        step, inside = step_s(view), view.inside
        left_s = since_s + QUANTUM_ITERATIONS * step - view.now_s
        # A turn that ends within half an iteration ends now: the host asks between iterations.
        over = left_s <= step / 2
        ended = inside & over & ~computes
        stage = np.where(inside & ~ended, 0, np.where(inside, 2, 1))
        order = np.lexsort((view.arrival_s, np.where(ended, -since_s, since_s), stage))
        run = packed(view, order.tolist(), skips=True)
        self._chosen_s = dict.fromkeys(run, view.now_s)
        if len(run) == len(view.ids):
            return Decision(run=tuple(run), skips=True)
        next_s = np.where(over, step, left_s)[inside & ~ended].min(initial=QUANTUM_ITERATIONS * step)
        return Decision(run=tuple(run), skips=True, again_s=view.now_s + float(next_s))

    def room(self, view: View) -> int:
        """Return what is missing to two full batches: with one, there is none to choose from."""
        return max(0, 2 * view.machine.seqs_max - len(view.ids))

    def _watch(self, view: View) -> None:
        """Note since when each request is where it is: in the batch, or outside."""
        known, now_s = self._spells, view.now_s
        inside: list[bool] = view.inside.tolist()
        arrived_s: list[float] = view.arrival_s.tolist()
        generated: list[int] = view.generated.tolist()
        self._spells = {}
        for request, within, arrival_s, tokens in zip(view.ids, inside, arrived_s, generated, strict=True):
            before = known.get(request, _Spell(False, arrival_s, tokens))
            since_s = before.since_s
            if before.inside != within:
                # Who came in did so when it was chosen.
                since_s = self._chosen_s.get(request, now_s) if within else now_s
            self._spells[request] = _Spell(within, since_s, before.tokens if within else tokens)
