"""Who of the working set runs: greedy, then local search over adjacent swaps (TokenFlow, section 4.2.2)."""

from typing import Final

import numpy as np

from qlm.agents.batching.packing import GROWTH_BLOCKS
from qlm.agents.batching.policies.tokenflow.candidates import Candidates
from qlm.agents.batching.view import Flags, Ints

SPARE_MIN: Final = 0.1
"""Least share of the time for computing again."""


def balanced(these: Candidates, members: Flags, quantum_s: float, capacity: float) -> Ints:
    """Return the rows of a set to run for a quantum, in order of admission.

    Args:
        these: The requests.
        members: The working set.
        quantum_s: Length of the quantum.
        capacity: Output tokens per second of the engine.
    """
    spare = max(SPARE_MIN, 1 - float(these.rate[members].sum()) / capacity)
    order = _computable(these, urgent_first(these, members), quantum_s, spare)
    return _searched(these, order, these.packing.rows(order, skips=True))


def filled(these: Candidates, members: Flags) -> Ints:
    """Return those inside, and the most urgent others of the set that fit."""
    order = urgent_first(these, members)
    inside = these.inside[order]
    return these.packing.rows(np.concatenate((order[inside], order[~inside])), skips=True)


def urgent_first(these: Candidates, members: Flags) -> Ints:
    """Return the rows of a set by phi(b), then v t', then pace, each falling; then in the engine's order."""
    rows = members.nonzero()[0]
    return rows[np.lexsort((-these.rate[rows], -these.tokens[rows], -these.phi[rows]))]


def _computable(these: Candidates, order: Ints, quantum_s: float, spare: float) -> Ints:
    """Return the rows without those whose prompts a quantum cannot compute; the first of them always stays.

    The prefill partition of section 4.2.3: prompts beyond capacity would fill memory and wait, so they are
    left for the next quantum. Ours: what is computed again may only take the time that readers do not need,
    else a working set without host memory computes nothing else.
    """
    restore = these.restore
    takes_s = np.where(restore.computes, restore.compute_share_s, 0.0)[order]
    again_s = takes_s * (these.view.generated[order] > 0)
    total_s = np.cumsum(takes_s)
    within = (total_s <= quantum_s) & ((again_s == 0) | (np.cumsum(again_s) <= spare * quantum_s))
    return np.asarray(order[(takes_s == 0) | within | (total_s == takes_s)])


def _searched(these: Candidates, order: Ints, chosen: Ints) -> Ints:
    """Return the rows after swaps of adjacent ones, one in and one out, that raise the total utility.

    Such pairs do not overlap, and a swap makes no new one: one pass is enough.
    """
    packing, utility = these.packing, these.utility
    is_in = np.zeros(len(these.inside), np.bool_)
    is_in[chosen] = True
    front, back, needed = order[:-1], order[1:], packing.needed
    swaps = is_in[front] & ~is_in[back] & (utility[back] > utility[front])
    left = these.view.machine.kv_blocks - int(needed[chosen].sum()) - GROWTH_BLOCKS * len(chosen)
    places = {row: place for place, row in enumerate(chosen.tolist())}
    result, fixed = chosen.copy(), frozenset(packing.fixed.tolist())
    for at in swaps.nonzero()[0].tolist():
        goes, comes = int(front[at]), int(back[at])
        spare = left + int(needed[goes] - needed[comes])
        if spare >= 0 and goes not in fixed:
            result[places[goes]], left = comes, spare
    return result
