"""The cheapest queue of one lane type under dual prices of groups, by dynamic programming; compiled code.

The state is (time step, awake model, marks). A mark says that a marked group was served, or a marked model
loaded, before. Only marked groups are served at most once, and only marked models are surely loaded from
their present tier first. Everything is rounded so that the result is never above the cost of a real queue;
docs/planner-certificate.md proves that.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from qlm.planner.arrays import Bools, Floats, Ints

UNMARKED = -1


class Track(NamedTuple):
    """One lane type: N groups that run there, sorted by model, M models; times in steps of the grid.

    Attributes:
        groups: Index of each group among all that are priced; (N,).
        begins: First group of each model, and the end; (M + 1,).
        stays: Steps until the next group of the same model; (N,).
        leaves: Steps until the next model can be loaded: service, tail and unloading; (N,).
        moves_s: Price of the move there; (N,).
        mark: Mark of each group, or `UNMARKED`; (N,).
        model_mark: Mark of each model, or `UNMARKED`; (M,).
        marks: Number of marks.
        level: Level of the variance of a start by the marked groups before it; (2^marks,).
        first: Steps of the first load of each model; (M,).
        again: Steps of a later one; (M,).
        second: Earliest step behind a second load of each model; (M,).
        loaded: Model that is awake at first, or -1.
        start: Step in which the busy time ends.
        swap_start: Step from which another model can be loaded first.
    """

    groups: Ints
    begins: Ints
    stays: Ints
    leaves: Ints
    moves_s: Floats
    mark: Ints
    model_mark: Ints
    marks: int
    level: Ints
    first: Ints
    again: Ints
    second: Ints
    loaded: int
    start: int
    swap_start: int


class Space(NamedTuple):
    """Work space: least costs from a step on.

    Attributes:
        stay: With a model awake; (T + 1, M, 2^marks).
        leave: With a model just unloaded; (T + 1, M, 2^marks).
    """

    stay: Floats
    leave: Floats


class Found(NamedTuple):
    """A queue that was traced back.

    Attributes:
        order: Indices in `Track.groups`, padded; at most one per step and group.
        cheats: Models that were loaded as if for a second time, without a first; (M,).
        size: Number of groups.
        cost_s: Its charges.
    """

    order: Ints
    cheats: Bools
    size: int
    cost_s: float


@njit(cache=True, nogil=True, inline="always")
def _marked(marks: int, mark: int) -> int:
    return marks if mark < 0 else marks | (1 << mark)


@njit(cache=True, nogil=True, inline="always")
def _arrival(track: Track, at: int, model: int, marks: int, last: int) -> int:
    """Return the step at which a model is loaded that is begun to be loaded at a step."""
    first = at + track.first[model]
    again = max(at + track.again[model], track.second[model])
    mark = track.model_mark[model]
    if mark < 0:
        return min(last, first, again)
    return min(last, again if marks >> mark & 1 else first)


@njit(cache=True, nogil=True)
def cheapest_queue(track: Track, charges: Floats, prices: Floats, space: Space) -> float:
    """Fill the work space, and return the least reduced cost of a queue; at most 0, that of an empty one.

    Args:
        track: The lane type.
        charges: Least penalty of each group of the track that starts in or after a step with at least the
            variance of a level; (L, T + 1, N).
        prices: Dual price of each group of the track; (N,).
        space: Work space.
    """
    last, models, size = charges.shape[1] - 1, len(track.begins) - 1, 1 << track.marks
    stay, leave = space.stay, space.leave
    beyond = 0.0
    for i in range(len(prices)):
        beyond += min(0.0, charges[0, last, i] + track.moves_s[i] - prices[i])
    stay[last, :, :size] = beyond
    leave[last, :, :size] = beyond
    for at in range(last - 1, track.start - 1, -1):
        for m in range(models):
            for marks in range(size):
                best, level = 0.0, track.level[marks]
                for i in range(track.begins[m], track.begins[m + 1]):
                    mark = track.mark[i]
                    if mark >= 0 and marks >> mark & 1:
                        continue
                    behind = _marked(marks, mark)
                    rest = min(
                        stay[min(last, at + track.stays[i]), m, behind],
                        leave[min(last, at + track.leaves[i]), m, behind],
                    )
                    best = min(best, charges[level, at, i] + track.moves_s[i] - prices[i] + rest)
                stay[at, m, marks] = best
        for m in range(models):
            for marks in range(size):
                best = 0.0
                for other in range(models):
                    if other != m:
                        behind = _marked(marks, track.model_mark[other])
                        best = min(best, stay[_arrival(track, at, other, marks, last), other, behind])
                leave[at, m, marks] = best
    return _first_value(track, space, last)


@njit(cache=True, nogil=True)
def _first_value(track: Track, space: Space, last: int) -> float:
    best = 0.0
    if track.loaded >= 0:
        best = min(best, space.stay[min(last, track.start), track.loaded, 0])
    for m in range(len(track.begins) - 1):
        if m != track.loaded:
            at = min(last, track.swap_start + track.first[m])
            best = min(best, space.stay[at, m, _marked(0, track.model_mark[m])])
    return float(best)


@njit(cache=True, nogil=True)
def traced_queue(track: Track, charges: Floats, prices: Floats, space: Space) -> Found:
    """Trace the cheapest queue back after `cheapest_queue`."""
    last, models = charges.shape[1] - 1, len(track.begins) - 1
    order = np.empty(last + 1 + len(prices), dtype=np.int64)
    cheats, visited = np.zeros(models, dtype=np.bool_), np.zeros(models, dtype=np.bool_)
    value, size, cost_s = _first_value(track, space, last), 0, 0.0
    at, m, marks = 0, -1, 0
    if value < 0.0:
        if track.loaded >= 0 and space.stay[min(last, track.start), track.loaded, 0] == value:
            at, m = min(last, track.start), track.loaded
        for other in range(models if m < 0 else 0):
            step = min(last, track.swap_start + track.first[other])
            behind = _marked(0, track.model_mark[other])
            if m < 0 and other != track.loaded and space.stay[step, other, behind] == value:
                at, m, marks = step, other, behind
        if track.loaded >= 0:
            visited[track.loaded] = True
    while m >= 0 and at < last and space.stay[at, m, marks] < 0.0:
        visited[m] = True
        value = space.stay[at, m, marks]
        leaving, level = -1, track.level[marks]
        for i in range(track.begins[m], track.begins[m + 1]):
            mark = track.mark[i]
            if mark >= 0 and marks >> mark & 1:
                continue
            behind = _marked(marks, mark)
            here = charges[level, at, i] + track.moves_s[i] - prices[i]
            stays, leaves = min(last, at + track.stays[i]), min(last, at + track.leaves[i])
            kept, left = space.stay[stays, m, behind], space.leave[leaves, m, behind]
            if here + min(kept, left) == value:
                order[size], size, cost_s = i, size + 1, cost_s + charges[level, at, i] + track.moves_s[i]
                marks = behind
                at, leaving = (stays, -1) if kept <= left else (leaves, m)
                break
        else:
            break
        if leaving < 0:
            continue
        if at >= last:
            break
        value, m, begun = space.leave[at, leaving, marks], -1, at
        if value >= 0.0:
            break
        for other in range(models):
            behind = _marked(marks, track.model_mark[other])
            step = _arrival(track, begun, other, marks, last)
            if other != leaving and space.stay[step, other, behind] == value:
                cheats[other] |= not visited[other] and step < min(last, begun + track.first[other])
                at, m, marks = step, other, behind
                break
    if m >= 0 and at >= last:
        for i in range(len(prices)):
            if charges[0, last, i] + track.moves_s[i] - prices[i] < 0.0:
                order[size], size, cost_s = i, size + 1, cost_s + charges[0, last, i] + track.moves_s[i]
    return Found(order[:size].copy(), cheats, size, cost_s)
