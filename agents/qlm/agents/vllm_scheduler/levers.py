"""From the decision of a policy to the three levers of the engine: preempt, admit, hold."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from qlm.agents.batching.decision import Decision
from qlm.agents.batching.view import Place, View

IDLE_ASK_S: Final = 0.01
"""Pause before a policy that lets no request run is asked again: it may have forgotten to say when."""


class Levers(NamedTuple):
    """What the engine does until the next decision.

    Attributes:
        preempt: Requests to preempt, each as soon as vLLM may free its blocks.
        order: Position of each request that may be in the batch; who has none waits.
        hold: Requests in the batch that compute nothing.
        skips: A request that does not fit lets later ones in.
        again_s: When to ask again; inf for the next arrival or end.
    """

    preempt: tuple[str, ...]
    order: Mapping[str, int]
    hold: frozenset[str]
    skips: bool
    again_s: float


def levers(decision: Decision, view: View) -> Levers:
    """Return the levers. Ids that the view does not have are left out; who is pinned or loading stays."""
    places = dict(zip(view.ids, view.place.tolist(), strict=True))
    order: dict[str, int] = {id: n for n, id in enumerate(decision.run) if id in places}
    inside = {id for id, place in places.items() if place != Place.OUTSIDE}
    kept = {id for id, pinned in zip(view.ids, view.pinned.tolist(), strict=True) if pinned}
    kept |= {id for id, place in places.items() if place == Place.LOADING}
    hold = frozenset(decision.hold & order.keys())
    again_s = float("inf") if decision.again_s is None else decision.again_s
    if not (order.keys() | (kept & inside)) - hold:
        again_s = min(again_s, view.now_s + IDLE_ASK_S)
    preempt = tuple(id for id in view.ids if id in inside and id not in order and id not in kept)
    return Levers(preempt, order, hold, decision.skips, again_s)


def open_part(
    waiting: Iterable[tuple[str, int]], order: Mapping[str, int], free_blocks: int, *, skips: bool
) -> list[str]:
    """Return which waiting requests the engine may admit, in this order.

    Without `skips` it gets all that the policy wants, and stops by itself at the first that does not fit.

    Args:
        waiting: Id and needed KV blocks of each.
        order: Of the levers.
        free_blocks: KV blocks that no request has.
        skips: Of the levers.
    """
    wanted = sorted((order[id], id, blocks) for id, blocks in waiting if id in order)
    chosen = []
    for _, id, blocks in wanted:
        if skips and blocks > free_blocks:
            continue
        free_blocks -= blocks
        chosen.append(id)
    return chosen
