"""The policy TokenFlow: working set, buffer balancing, and first come, first served beyond capacity."""

from typing import Final

import numpy as np

from qlm.agents.batching.decision import Decision
from qlm.agents.batching.policies.tokenflow.balance import balanced, filled
from qlm.agents.batching.policies.tokenflow.candidates import Candidates, candidates
from qlm.agents.batching.policies.tokenflow.options import Options
from qlm.agents.batching.policies.tokenflow.working_set import (
    admitted,
    may_yield,
    schedulable,
    working_set_max,
)
from qlm.agents.batching.room import room_to_choose
from qlm.agents.batching.step_time import capacity_tokens_per_s
from qlm.agents.batching.view import Flags, Ints, View
from qlm.domain.ids import RequestId

DEFAULTS: Final = Options()

ROUNDING_S: Final = 1e-6
"""A host may ask this much before the time that was asked for."""


class TokenFlow:
    """Let readers whose buffers are empty run first, and those with full ones yield, once per quantum.

    It remembers the working set and when the quantum ends.
    """

    def __init__(self, options: Options = DEFAULTS) -> None:
        """Begin with an empty working set.

        Raises:
            InvalidValueError: An option is out of its range.
        """
        options.check()
        self._options = options
        self._members: frozenset[RequestId] = frozenset()
        self._next_s = -np.inf

    def decide(self, view: View) -> Decision:
        """Return who runs for the next quantum; between two quanta the batch stays, and is filled up.

        Scheduled only if a request waits, in the working set or for it; else all run (the triggers of section
        4.2.1: a buffer can only get critical outside).
        """
        if view.inside.all():
            self._members, self._next_s = frozenset(view.ids), -np.inf
            return Decision(run=tuple(view.ids))
        these, options = candidates(view, self._options), self._options
        ends = view.now_s >= self._next_s - ROUNDING_S
        capacity = capacity_tokens_per_s(view)
        known = self._known(these)
        members = self._working_set(these, known, capacity, yields=ends)
        if ends:
            self._next_s = view.now_s + options.quantum_s
        if not schedulable(these, members, capacity):
            rows = _first_come(these, members)
        elif ends and _needed(these, members, known, options):
            rows = balanced(these, members, options.quantum_s, capacity)
        else:
            rows = filled(these, members)
        return _decision(these, rows, members, self._next_s)

    def room(self, view: View) -> int:
        """Return how many more requests the engine may have to choose from."""
        return room_to_choose(view)

    def _known(self, these: Candidates) -> Flags:
        """Return who runs, and who did and waits."""
        ids, members = these.view.ids, self._members
        return these.inside | np.fromiter(map(members.__contains__, ids), np.bool_, len(ids))

    def _working_set(self, these: Candidates, known: Flags, capacity: float, *, yields: bool) -> Flags:
        """Return who takes turns, and remember it: those known, and who joins."""
        members = admitted(
            these,
            known,
            may_yield(these, self._options) if yields else np.zeros(0, np.int64),
            set_max=working_set_max(these, self._options),
            capacity=capacity,
        )
        ids = these.view.ids
        self._members = frozenset(map(ids.__getitem__, members.nonzero()[0].tolist()))
        return members


def _needed(these: Candidates, members: Flags, known: Flags, options: Options) -> bool:
    """Return True if a new request has joined, or a buffer outside is below T_critical."""
    outside = members & ~these.inside
    critical = outside & (these.buffer_s < options.critical_s)
    return bool((members & ~known).any() or critical.any())


def _first_come(these: Candidates, members: Flags) -> Ints:
    """Return the set in the engine's order, those inside first: the rule beyond capacity (section 4.3)."""
    order = np.argsort(~these.inside, kind="stable")
    return order[members[order]]


def _decision(these: Candidates, rows: Ints, members: Flags, again_s: float) -> Decision:
    """Return the decision for these rows. If the whole set runs, what is left is for others."""
    view, restore = these.view, these.restore
    if len(rows) == int(np.count_nonzero(members)):
        rows = np.concatenate((rows, (~members).nonzero()[0]))
    # Section 4.2.3: computed again where loading takes longer.
    computes = (restore.computes & (view.host_tokens > 0) & ~these.inside).nonzero()[0]
    return Decision(
        run=tuple(map(view.ids.__getitem__, rows.tolist())),
        recompute=frozenset(map(view.ids.__getitem__, computes.tolist())),
        again_s=again_s,
    )
