"""Order of all requests, most wanted first; packing ends it where blocks end."""

from typing import Final

import numpy as np

from qlm.agents.batching.packing import Packing
from qlm.agents.batching.policies.unified.demands import Demands
from qlm.agents.batching.view import Flags, Floats, Ints, View

RESERVE_SHARE: Final = 0.1
"""Blocks that best-effort requests leave free when they come in, as a share of what the members of the batch
take. Without it, each took a rest of the cache until the next member came: 4.5 preemptions per best-effort
request on mixed work, with it 1.0 and the same tokens per second (docs/batch-policy-unified.md)."""


class Stage:
    """Part of the order that a request belongs to. Plain numbers, for columns of them."""

    DEADLINE: Final = 0
    """A deadline that is urgent or inside, by slack: to interrupt it gains nothing that it could repay."""
    READER: Final = 1
    """A reader that is urgent, or inside and not to spare, by price."""
    SPARE: Final = 2
    """A reader inside that can wait, by slack: the one with the most yields first."""
    STARTED: Final = 3
    """Outside, with tokens, not urgent: by slack."""
    NEW: Final = 4
    """Outside, without a token, not urgent: by rank of the virtual queue, then by slack."""
    RESIDENT: Final = 5
    """Best-effort and inside: by rank, then arrival."""
    BEST_EFFORT: Final = 6
    """Best-effort and outside: by rank, then arrival."""


def stages(view: View, needs: Demands, members: Flags, urgent: Flags, spare: Flags) -> Ints:
    """Return the stage of each request."""
    inside = view.inside
    wanted = urgent | (inside & ~spare)
    stage = np.where(inside, Stage.RESIDENT, Stage.BEST_EFFORT)
    stage[members] = np.where(view.generated[members] > 0, Stage.STARTED, Stage.NEW)
    stage[members & wanted] = Stage.READER
    stage[members & wanted & needs.timed] = Stage.DEADLINE
    stage[spare & ~urgent] = Stage.SPARE
    return stage


def ordered(view: View, needs: Demands, stage: Ints, price: Floats) -> Ints:
    """Return the rows, most wanted first; equals in the order of the view."""
    within = np.where(stage < Stage.RESIDENT, needs.slack_s, view.arrival_s)
    within = np.where(stage == Stage.READER, -price, within)
    rank = np.where(stage < Stage.NEW, 0, view.rank)
    return np.asarray(np.lexsort((within, rank, stage)), np.int64)


def packed(packing: Packing, stage: Ints, order: Ints) -> Ints:
    """Return the rows that fit together; best-effort ones come in only if a reserve for the members is left.

    Args:
        packing: The view's packing.
        stage: Stage of each request.
        order: Rows, most wanted first, best-effort ones outside last.
    """
    comes = stage[order] == Stage.BEST_EFFORT
    rows = packing.rows(order[~comes], skips=True)
    reserve = RESERVE_SHARE * int(packing.needed[rows[stage[rows] < Stage.RESIDENT]].sum())
    return packing.behind(rows, order[comes], kept_free=reserve)
