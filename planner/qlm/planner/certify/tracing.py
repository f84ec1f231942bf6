"""Traces the cheapest queue back from the work space of the dynamic program, in compiled code."""

from typing import NamedTuple

import numpy as np

from qlm.planner.arrays import Bools, Floats, Ints
from qlm.planner.certify.pricing import Space, Track, arrival, cost_with, first_value, with_mark
from qlm.planner.compiling.compiled import compiled

NOWHERE = -1


class Found(NamedTuple):
    """A queue that was traced back.

    Attributes:
        order: Indices in `Track.groups`.
        cheats: Models that were loaded as if for a second time, without a first; (M,).
        cost_s: Its charges.
    """

    order: Ints
    cheats: Bools
    cost_s: float


@compiled()
def traced_queue(track: Track, charges: Floats, prices: Floats, space: Space) -> Found:
    """Trace the cheapest queue back after `cheapest_queue`, with the same arguments."""
    last, models = charges.shape[1] - 1, len(track.begins) - 1
    order = np.empty(last + 1 + len(prices), dtype=np.int64)
    cheats, visited = np.zeros(models, dtype=np.bool_), np.zeros(models, dtype=np.bool_)
    if track.loaded >= 0:
        visited[track.loaded] = True
    size, cost_s = 0, 0.0
    at, m, marks = _first_state(track, space, last)
    while m >= 0 and at < last and space.stay[at, m, marks] < 0.0:
        visited[m] = True
        i = _next_group(track, charges, prices, space, at, m, marks)
        if i < 0:
            break
        cost_s += charges[track.level[marks], at, i] + track.moves_s[i]
        order[size], size = i, size + 1
        marks = with_mark(marks, track.mark[i])
        follows, leaves = min(last, at + track.follows[i]), min(last, at + track.leaves[i])
        if space.stay[follows, m, marks] <= space.leave[leaves, m, marks]:
            at = follows
        else:
            other, step = _next_model(track, space, leaves, m, marks, last)
            if other >= 0:
                cheats[other] |= not visited[other] and step < min(last, leaves + track.first[other])
                marks = with_mark(marks, track.model_mark[other])
            at, m = step, other
    for i in range(len(prices) if m >= 0 and at >= last else 0):
        if charges[0, last, i] + track.moves_s[i] < prices[i]:
            cost_s += charges[0, last, i] + track.moves_s[i]
            order[size], size = i, size + 1
    return Found(order[:size].copy(), cheats, cost_s)


@compiled()
def _first_state(track: Track, space: Space, last: int) -> tuple[int, int, int]:
    """Return the step, the model and the marks with which the cheapest queue begins; no model if empty."""
    value = first_value(track, space, last)
    if value < 0.0 and track.loaded >= 0:
        at = min(last, track.start)
        if space.stay[at, track.loaded, 0] == value:
            return at, track.loaded, 0
    for m in range(len(track.begins) - 1):
        at, marks = min(last, track.swap_start + track.first[m]), with_mark(0, track.model_mark[m])
        if value < 0.0 and m != track.loaded and space.stay[at, m, marks] == value:
            return at, m, marks
    return last, NOWHERE, 0


@compiled()
def _next_group(
    track: Track, charges: Floats, prices: Floats, space: Space, at: int, m: int, marks: int
) -> int:
    for i in range(track.begins[m], track.begins[m + 1]):
        if cost_with(track, charges, prices, space, at, m, marks, i) == space.stay[at, m, marks]:
            return i
    return NOWHERE


@compiled()
def _next_model(track: Track, space: Space, at: int, m: int, marks: int, last: int) -> tuple[int, int]:
    """Return the model that is loaded next, and when; none if the queue ends here."""
    if at >= last:
        return m, last
    for other in range(len(track.begins) - 1):
        step = arrival(track, at, other, marks, last)
        behind = with_mark(marks, track.model_mark[other])
        if other != m and space.leave[at, m, marks] == space.stay[step, other, behind]:
            return other, step
    return NOWHERE, at
