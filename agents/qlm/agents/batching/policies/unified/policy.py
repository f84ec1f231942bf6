"""The policy, from its parts."""

from math import inf
from typing import Final

from qlm.agents.batching.decision import Decision
from qlm.agents.batching.packing import Packing
from qlm.agents.batching.policies.iterations import step_s
from qlm.agents.batching.policies.unified.capacity import capacity
from qlm.agents.batching.policies.unified.demands import Demands, demands
from qlm.agents.batching.policies.unified.loads import Loads, link_wait_s, loads
from qlm.agents.batching.policies.unified.members import members
from qlm.agents.batching.policies.unified.order import ordered, packed, stages
from qlm.agents.batching.policies.unified.prices import prices
from qlm.agents.batching.policies.unified.speed import (
    readers_falling_behind,
    size_of_most_goodput,
    who_runs_first,
)
from qlm.agents.batching.policies.unified.turns import spare, urgent
from qlm.agents.batching.view import Ints, View
from qlm.domain.ids import RequestId
from qlm.domain.streaming.reader import READING_TOKENS_PER_S

QUANTUM_S: Final = 0.2
"""Time between decisions while some request waits."""


class Unified:
    """Run whose slack ends, take blocks from whose reader has enough unread, and keep the rest as it is.

    Readers and deadlines are compared by slack and price, batch work fills what they leave. It has no memory:
    a decision depends on the view alone.

    A view has no priority classes. The rank of the virtual queue orders who is let in and the best-effort
    requests; a plan that ranks a priority class first is obeyed there, and not among those that run.
    """

    def __init__(self, *, admission_share: float = inf) -> None:
        """Set the share of the capacity that may be promised to readers and deadlines.

        Args:
            admission_share: New ones beyond it are best-effort; inf lets all in.
        """
        self._admission_share = admission_share

    def decide(self, view: View) -> Decision:
        """Return the first of the order that fit together."""
        if not view.ids:
            return Decision(run=())
        needs, load = demands(view), loads(view)
        rows = self._batch(view, needs, load)
        run = [view.ids[row] for row in rows.tolist()]
        return Decision(
            run=tuple(run),
            recompute=_recomputed(view, load, run),
            skips=True,
            again_s=view.now_s + _quantum_s(view, len(run)),
        )

    def room(self, view: View) -> int:
        """Return how many more requests of the members' mean pace the capacity serves, or the free slots.

        Readers that have enough unread leave their slots to others, so the instance takes more than slots.
        Without members, the pace is one of reading. Best-effort requests that wait take places.
        """
        slots = max(0, view.machine.seqs_max - len(view.ids))
        needs, share, tokens_per_s = demands(view), min(1.0, self._admission_share), capacity(view)
        part = members(view, needs, tokens_per_s, self._admission_share)
        pace = needs.pace[part & (needs.pace > 0)]
        mean = float(pace.mean()) if pace.size else READING_TOKENS_PER_S
        waiting = int((~part & ~view.inside).sum())
        return max(slots, int((share * tokens_per_s - pace.sum()) / mean) - waiting)

    def _batch(self, view: View, needs: Demands, load: Loads) -> Ints:
        """Return the rows to run: what fits into memory and slots, and no more than speed allows."""
        stage, order = self._order(view, needs, load)
        packing = Packing(view)
        rows = packed(packing, stage, order)
        if not readers_falling_behind(view, needs, stage, rows).any():
            return rows
        rows = packed(packing, stage, who_runs_first(view, stage, order))
        reads = readers_falling_behind(view, needs, stage, rows)
        if not reads.any():
            return rows  # what made it too slow is outside: a shorter batch would only stop readers in time
        return rows[: max(len(packing.fixed), size_of_most_goodput(view, needs, rows, reads))]

    def _order(self, view: View, needs: Demands, load: Loads) -> tuple[Ints, Ints]:
        """Return the stage of each row, and the rows in order."""
        tokens_per_s = capacity(view)
        part = members(view, needs, tokens_per_s, self._admission_share)
        due = urgent(view, needs, part, load.takes_s, link_wait_s(view))
        waits = spare(view, needs, part, load, tokens_per_s)
        stage = stages(view, needs, part, due, waits)
        return stage, ordered(view, needs, stage, prices(view, needs))


def _recomputed(view: View, load: Loads, run: list[RequestId]) -> frozenset[RequestId]:
    """Return who comes in and is computed again faster than loaded."""
    if not load.recomputes.any():
        return frozenset()
    outside = (load.recomputes & ~view.inside).nonzero()[0]
    return frozenset(view.ids[row] for row in outside.tolist()).intersection(run)


def _quantum_s(view: View, running: int) -> float:
    """Return the time to the next decision: if all run, until the free blocks are used, at the earliest."""
    if running < len(view.ids):
        return QUANTUM_S
    machine = view.machine
    free_blocks = machine.kv_blocks - int(view.needed_blocks.sum())
    return max(QUANTUM_S, free_blocks / len(view.ids) * machine.block_tokens * step_s(view))
