"""Which requests of an order fit into the KV cache together."""

from collections.abc import Iterable
from typing import Final

from qlm.agents.batching.view import View
from qlm.domain.ids import RequestId

GROWTH_BLOCKS: Final = 1
"""Blocks kept free for each running request, so that decoding does not preempt what was just admitted. Packed
to the last block, policies preempt for growth alone (measured on Andes, streaming.md)."""


def packed(
    view: View, order: Iterable[int], *, growth_blocks: int = GROWTH_BLOCKS, skips: bool = False
) -> list[RequestId]:
    """Return the requests of an order that fit together, from the first on.

    Pinned requests inside come first: they keep their blocks in any case.

    Args:
        view: The instance.
        order: Rows, most wanted first.
        growth_blocks: Blocks kept free per request.
        skips: Go on behind a request that does not fit.
    """
    needed, machine = view.needed_blocks, view.machine
    kept = [row for row in range(len(view.ids)) if view.pinned[row] and view.inside[row]]
    left = machine.kv_blocks - sum(int(needed[row]) + growth_blocks for row in kept)
    chosen, taken = list(kept), set(kept)
    for row in order:
        if len(chosen) >= machine.seqs_max:
            break
        if row in taken:
            continue
        takes = int(needed[row]) + growth_blocks
        # Alone, a request may use what is kept for growth.
        if takes > left and (chosen or takes - growth_blocks > left):
            if skips:
                continue
            break
        chosen.append(row)
        left -= takes
    return [view.ids[row] for row in chosen]
