"""Which requests of an order fit into the KV cache together."""

from collections.abc import Iterable
from typing import Final

import numpy as np

from qlm.agents.batching.view import Flags, Ints, View
from qlm.domain.ids import RequestId

GROWTH_BLOCKS: Final = 1
"""Blocks kept free for each running request, so that decoding does not preempt what was just admitted. Packed
to the last block, policies preempt for growth alone (measured on Andes, streaming.md)."""


def packed(
    view: View,
    order: Iterable[int],
    *,
    leaves: Flags | None = None,
    growth_blocks: int = GROWTH_BLOCKS,
    skips: bool = False,
) -> list[RequestId]:
    """Return the requests of an order that fit together, from the first on.

    Pinned requests inside come first: they keep their blocks in any case.

    Args:
        view: The instance.
        order: Rows, most wanted first.
        leaves: As for `Packing`: rows that leave room for growth; None for all.
        growth_blocks: Blocks kept free per request.
        skips: Go on behind a request that does not fit.
    """
    packing = Packing(view, leaves=leaves, growth_blocks=growth_blocks)
    rows = np.fromiter(order, np.int64)
    return [view.ids[row] for row in packing.rows(rows, skips=skips).tolist()]


class Packing:
    """Packing of one view in different orders.

    Attributes:
        needed: Blocks that each row takes (`View.needed_blocks`).
        fixed: Rows that are pinned inside: they come first in any case.
    """

    def __init__(
        self, view: View, *, leaves: Flags | None = None, growth_blocks: int = GROWTH_BLOCKS
    ) -> None:
        """Begin with a view.

        Args:
            view: The instance.
            leaves: By row: it is only taken if it leaves room for growth, for itself and those before it.
                None for all rows.
            growth_blocks: Blocks kept free per request.
        """
        self.needed: Ints = view.needed_blocks
        pinned = view.pinned & view.inside
        self.fixed: Ints = pinned.nonzero()[0]
        self._pinned = pinned if len(self.fixed) else None
        self._blocks, self._slots = view.machine.kv_blocks, view.machine.seqs_max
        self._growth = np.full(len(view.ids), growth_blocks) if leaves is None else growth_blocks * leaves
        self._counts = np.arange(len(self.fixed) + 1, len(self.fixed) + len(view.ids) + 1)

    def rows(self, order: Ints, *, seqs_max: int | None = None, skips: bool = False) -> Ints:
        """Return the rows of an order that fit together, from the first on.

        Args:
            order: Rows, most wanted first, each at most once.
            seqs_max: Most rows; None for the batch slots.
            skips: Go on behind a row that does not fit.
        """
        slots = (self._slots if seqs_max is None else min(seqs_max, self._slots)) - len(self.fixed)
        if self._pinned is not None:
            order = order[~self._pinned[order]]
        takes, kept_free = self.needed[order], self._growth[order] * self._counts[: len(order)]
        left = self._blocks - int(self.needed[self.fixed].sum())
        ends = np.cumsum(takes)
        fits = ends + kept_free <= left
        first = len(order) if fits.all() else int(fits.argmin())
        if first == 0 and len(order) and not len(self.fixed):
            # Alone, a request may use what is kept for growth.
            first = int(takes[0] <= left)
        first = max(0, min(first, slots))
        chosen = order[:first]
        if skips and first < min(slots, len(order)):
            left -= int(ends[first - 1]) if first else 0
            chosen = np.concatenate((chosen, self._behind(order[first:], first, left, slots - first)))
        return np.concatenate((self.fixed, chosen)) if len(self.fixed) else chosen

    def behind(self, rows: Ints, order: Ints, *, kept_free: float = 0) -> Ints:
        """Return rows that fit together, and those of an order that fit behind them, one by one.

        Args:
            rows: Rows as `rows` returns them.
            order: Other rows, most wanted first, none of them pinned inside.
            kept_free: Blocks that each of these leaves free, unless growth keeps more.
        """
        left, slots = self._blocks - int(self.needed[rows].sum()), self._slots - len(rows)
        if slots <= 0 or left <= 0:
            return rows
        count = len(rows) - len(self.fixed)
        return np.concatenate((rows, self._behind(order, count, left, slots, kept_free)))

    def _behind(self, order: Ints, count: int, left: int, slots: int, kept_free: float = 0) -> Ints:
        """Return the rows that still fit, one by one, behind `count` others."""
        chosen: list[int] = []
        count += len(self.fixed) + 1
        order = order[self.needed[order] + self._growth[order] * count <= left] if count > 1 else order
        takes, grows = self.needed[order].tolist(), self._growth[order].tolist()
        for row, blocks, growth in zip(order.tolist(), takes, grows, strict=True):
            if blocks + max(growth * count if count > 1 else 0, kept_free) <= left:
                chosen.append(row)
                left, count = left - blocks, count + 1
                if len(chosen) == slots or left <= 0:
                    break
        return np.array(chosen, np.int64)
