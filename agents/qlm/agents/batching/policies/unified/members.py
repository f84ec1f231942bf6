"""Who takes part: requests with an objective that is worth the instance's time. The others are best-effort.

A reader that idled for more than 10 s yields, and so does a deadline that cannot be met, alone or beside the
others. Past saturation some must, or all are late together: without it QoE was 0.85 instead of 0.90, and
smooth goodput 268 instead of 416.

A reader comes back while the paces of the members leave capacity. Without that, a burst is lost for good (QoE
0.869 instead of 0.965).
"""

from typing import Final

import numpy as np

from qlm.agents.batching.policies.unified.deadlines import crowded_out
from qlm.agents.batching.policies.unified.demands import Demands
from qlm.agents.batching.room import IDLE_MAX_S
from qlm.agents.batching.view import Flags, Floats, Ints, View

BACK_SHARE: Final = 0.95
"""Share of the capacity up to which readers come back."""


def members(view: View, needs: Demands, capacity: float, admission_share: float) -> Flags:
    """Return who takes part.

    Args:
        view: The instance.
        needs: What the requests need.
        capacity: Tokens per second of the instance.
        admission_share: Share of it that may be promised; inf for no limit.
    """
    yields = needs.reads & ~needs.timed & (needs.idle_s > IDLE_MAX_S)
    part = np.isfinite(needs.slack_s) & ~yields
    part &= ~crowded_out(view, needs, part, capacity)
    if np.isfinite(admission_share):
        part &= _admitted(view, needs, part, admission_share * capacity)
    if yields.any():
        part |= _back(needs, yields, BACK_SHARE * capacity - float(needs.pace[part].sum()))
    return np.asarray(part)


def _back(needs: Demands, yields: Flags, left: float) -> Flags:
    """Return the readers that come back, who idled least first."""
    rows = yields.nonzero()[0]
    return _first(rows[np.argsort(needs.idle_s[rows], kind="stable")], needs.pace, left)


def _admitted(view: View, needs: Demands, part: Flags, left: float) -> Flags:
    """Return who is let in: who was before; new ones by rank, those in time by slack, then the least late."""
    started = part & (view.inside | (view.generated > 0))
    rows = (part & ~started).nonzero()[0]
    slack_s = needs.slack_s[rows]
    order = rows[np.lexsort((np.abs(slack_s), slack_s < 0, view.rank[rows]))]
    return np.asarray(started | _first(order, needs.pace, left - float(needs.pace[started].sum())))


def _first(order: Ints, pace: Floats, left: float) -> Flags:
    """Return the first of an order, as far as their paces fit."""
    chosen = np.zeros(len(pace), np.bool_)
    chosen[order[np.cumsum(pace[order]) <= left]] = True
    return chosen
