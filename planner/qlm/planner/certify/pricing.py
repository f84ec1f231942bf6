"""The cheapest queue of one lane type under dual prices of groups, by dynamic programming; compiled code.

The state is (time step, awake model, marks). A mark says that a marked group was served, or a marked model
loaded, before. Only marked groups are served at most once, and only marked models are surely loaded from
their present tier first. Everything is rounded so that the result is never above the cost of a real queue;
docs/planner-certificate.md proves that.
"""

from typing import NamedTuple

import numpy as np

from qlm.planner.arrays import Floats, Ints
from qlm.planner.compiling.compiled import compiled
from qlm.planner.compiling.refcounts import without_refcounts

UNMARKED = -1


class Track(NamedTuple):
    """One lane type: N groups that run there, sorted by model, M models; times in steps of the grid.

    Attributes:
        groups: Index of each group among all that are priced; (N,).
        begins: First group of each model, and the end; (M + 1,).
        follows: Steps until the next group of the same model; (N,).
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
    follows: Ints
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


@compiled(inline="always")
def with_mark(marks: int, mark: int) -> int:
    """Add a mark, if it is one."""
    return marks if mark < 0 else marks | (1 << mark)


@compiled(inline="always")
def arrival(track: Track, at: int, model: int, marks: int, last: int) -> int:
    """Return the step at which a model is loaded that is begun to be loaded at a step."""
    first = at + track.first[model]
    again = max(at + track.again[model], track.second[model])
    mark = track.model_mark[model]
    if mark < 0:
        return int(min(last, first, again))
    return int(min(last, again if marks >> mark & 1 else first))


@compiled(inline="always")
def cost_with(
    track: Track, charges: Floats, prices: Floats, space: Space, at: int, m: int, marks: int, i: int
) -> float:
    """Return the least reduced cost from a step on if a group is served next; infinite if it was before."""
    mark, last = track.mark[i], charges.shape[1] - 1
    if mark >= 0 and marks >> mark & 1:
        return np.inf
    behind = with_mark(marks, mark)
    rest = min(
        space.stay[min(last, at + track.follows[i]), m, behind],
        space.leave[min(last, at + track.leaves[i]), m, behind],
    )
    return float(charges[track.level[marks], at, i] + track.moves_s[i] - prices[i] + rest)


@compiled()
def cheapest_queue(track: Track, charges: Floats, prices: Floats, space: Space) -> float:
    """Fill the work space, and return the least reduced cost of a queue; at most 0, that of an empty one.

    Args:
        track: The lane type.
        charges: Least penalty of each group of the track that starts in or after a step with at least the
            variance of a level; (L, T + 1, N).
        prices: Dual price of each group of the track; (N,).
        space: Work space.
    """
    track, charges, prices, space = without_refcounts((track, charges, prices, space))
    last, models, size = charges.shape[1] - 1, len(track.begins) - 1, 1 << track.marks
    beyond = 0.0
    for i in range(len(prices)):
        beyond += min(0.0, charges[0, last, i] + track.moves_s[i] - prices[i])
    space.stay[last, :, :size] = beyond
    space.leave[last, :, :size] = beyond
    for at in range(last - 1, track.start - 1, -1):
        for m in range(models):
            for marks in range(size):
                best = 0.0
                for i in range(track.begins[m], track.begins[m + 1]):
                    best = min(best, cost_with(track, charges, prices, space, at, m, marks, i))
                space.stay[at, m, marks] = best
        _fill_leave(track, space, at, last)
    return first_value(track, space, last)


@compiled()
def _fill_leave(track: Track, space: Space, at: int, last: int) -> None:
    """Write the least reduced costs from a step on with a model just unloaded."""
    models = len(track.begins) - 1
    for m in range(models):
        for marks in range(1 << track.marks):
            best = 0.0
            for other in range(models):
                if other != m:
                    behind = with_mark(marks, track.model_mark[other])
                    best = min(best, space.stay[arrival(track, at, other, marks, last), other, behind])
            space.leave[at, m, marks] = best


@compiled()
def first_value(track: Track, space: Space, last: int) -> float:
    """Return the least reduced cost of a queue, from the filled work space."""
    best = 0.0
    if track.loaded >= 0:
        best = min(best, space.stay[min(last, track.start), track.loaded, 0])
    for m in range(len(track.begins) - 1):
        if m != track.loaded:
            at = min(last, track.swap_start + track.first[m])
            best = min(best, space.stay[at, m, with_mark(0, track.model_mark[m])])
    return float(best)
