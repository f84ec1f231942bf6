"""Simulated annealing over virtual queues in compiled code.

A move takes a run of groups (one group, or several of one model) out of a queue and puts it elsewhere,
exchanges two runs, or exchanges the ends of two queues. Most targets are places beside groups of the same
model, where no swap is paid. A move is judged by the cost of the changed ends of two queues, and given up
as soon as these exceed what would be accepted.
"""

import math
from typing import Final

from numba import njit

from qlm.planner.arrays import Ints
from qlm.planner.borrowed import borrowed
from qlm.planner.fast.data import (
    BEGIN,
    COST,
    END,
    INSTANCE,
    MODEL,
    PEER,
    REST,
    SAME,
    Data,
    Drafts,
    Queues,
)
from qlm.planner.fast.queues import INFEASIBLE, adopt, in_order, timed

RUN_MAX: Final = 12
"""Groups that one move takes along at most."""

NEAR: Final = 20
"""Go beside one of so many groups of the same model with earlier deadlines, or as many with later ones."""

# Shares of moves, in percent; found on the live problem of the benchmarks, where they matter little.
_COSTLY: Final = 50
"""Begin with the costliest of three groups, not with any."""
_RUN: Final = 20
"""Take along a run of groups of one model."""
_PEER: Final = 75
"""Go beside a group of the same model, not anywhere: without the rest, models settle too early."""
_ENDS: Final = 10
"""Exchange the ends of two queues."""
_SWAP: Final = 70
"""Exchange one run for another, or the ends; the rest goes one way."""

_STEP: Final = 64
"""Moves at one temperature."""


@njit(cache=True, nogil=True, inline="always")
def _next(state: Ints) -> int:
    """Next 31 random bits: Marsaglia's 64-bit xorshift, the high half; its state is never 0."""
    bits: int = state[0]
    bits ^= bits << 13
    bits ^= (bits >> 7) & 0x1FFFFFFFFFFFFFF
    bits ^= bits << 17
    state[0] = bits
    return (bits >> 33) & 0x7FFFFFFF


@njit(cache=True, nogil=True, inline="always")
def _below(state: Ints, bound: int) -> int:
    return (_next(state) * bound) >> 31


@njit(cache=True, nogil=True, inline="always")
def _unit(state: Ints) -> float:
    return (_next(state) + 1.0) / 2147483648.0


@njit(cache=True, nogil=True, inline="always")
def _chosen(data: Data, queues: Queues, random: Ints) -> int:
    """Choose a group to move."""
    group: int = data.peers[_below(random, len(data.peers))]
    if _below(random, 100) < _COSTLY:
        cost = queues.state[queues.spot[group, 0], queues.spot[group, 1], COST]
        for _ in range(2):
            other = data.peers[_below(random, len(data.peers))]
            other_cost = queues.state[queues.spot[other, 0], queues.spot[other, 1], COST]
            if other_cost > cost:
                group, cost = other, other_cost
    return group


@njit(cache=True, nogil=True, inline="always")
def _target(data: Data, queues: Queues, random: Ints, group: int) -> tuple[int, int]:
    """Choose an instance and a place for groups of a model: beside one of its groups, or anywhere."""
    model = data.who[group, MODEL]
    if _below(random, 100) < _PEER:
        first, behind = data.peers_from[model], data.peers_from[model + 1]
        span = min(2 * NEAR + 1, behind - first)
        near = max(first, min(data.who[group, PEER] - NEAR, behind - span)) + _below(random, span)
        other = data.peers[near]
        return queues.spot[other, 0], queues.spot[other, 1] + _below(random, 2)
    instance = data.able[model, _below(random, data.able_count[model])]
    return instance, _below(random, queues.length[instance] + 1)


@njit(cache=True, nogil=True, inline="always")
def _run_end(data: Data, queues: Queues, instance: int, begin: int) -> int:
    """Place after the last group of the run of one model that goes on at `begin`, as far as moves go."""
    model = data.who[queues.queue[instance, begin], MODEL]
    most = min(queues.length[instance], begin + RUN_MAX)
    end = begin + 1
    while end < most and data.who[queues.queue[instance, end], MODEL] == model:
        end += 1
    return end


@njit(cache=True, nogil=True, inline="always")
def _shifted(queues: Queues, drafts: Drafts, instance: int, begin: int, end: int, to: int) -> int:
    """Draft places [begin, end) of a queue at another place of it; return the number of drafts."""
    if begin <= to <= end:
        return 0
    size = end - begin
    low, high = min(begin, to), max(end, to)
    for place in range(max(0, low - 1), queues.length[instance]):
        drafts.groups[0, place] = queues.queue[instance, place]
    if to < begin:
        for at in range(size):
            drafts.groups[0, to + at] = queues.queue[instance, begin + at]
        for place in range(to, begin):
            drafts.groups[0, place + size] = queues.queue[instance, place]
    else:
        for place in range(end, to):
            drafts.groups[0, place - size] = queues.queue[instance, place]
        for at in range(size):
            drafts.groups[0, to - size + at] = queues.queue[instance, begin + at]
    drafts.span[0, INSTANCE], drafts.span[0, BEGIN] = instance, low
    drafts.span[0, SAME], drafts.span[0, END] = high, queues.length[instance]
    return 1


@njit(cache=True, nogil=True, inline="always")
def _exchanged(
    queues: Queues, drafts: Drafts, one: int, begin: int, end: int, two: int, start: int, stop: int
) -> int:
    """Draft [begin, end) of queue `one` exchanged for [start, stop) of `two`; return the number of drafts."""
    grows = (stop - start) - (end - begin)
    room = queues.queue.shape[1]
    if queues.length[one] + grows > room or queues.length[two] - grows > room:
        return 0
    for side in range(2):
        here, low, high = (one, begin, end) if side == 0 else (two, start, stop)
        there, first, last = (two, start, stop) if side == 0 else (one, begin, end)
        same = low + last - first
        if low > 0:
            drafts.groups[side, low - 1] = queues.queue[here, low - 1]
        for at in range(last - first):
            drafts.groups[side, low + at] = queues.queue[there, first + at]
        for at in range(queues.length[here] - high):
            drafts.groups[side, same + at] = queues.queue[here, high + at]
        drafts.span[side, INSTANCE], drafts.span[side, BEGIN] = here, low
        drafts.span[side, SAME], drafts.span[side, END] = same, same + queues.length[here] - high
    return 2


@njit(cache=True, nogil=True, inline="always")
def _drafted(data: Data, queues: Queues, drafts: Drafts, random: Ints) -> int:
    """Draft a random move; return the number of queues that it changes."""
    group = _chosen(data, queues, random)
    one, begin = queues.spot[group, 0], queues.spot[group, 1]
    end = begin + 1
    if _below(random, 100) < _RUN:
        end = _run_end(data, queues, one, begin)
        if end - begin > 1 and _below(random, 2):
            end = begin + 1 + _below(random, end - begin)
    two, to = _target(data, queues, random, group)
    if two == one:
        return _shifted(queues, drafts, one, begin, end, to)
    form, stop = _below(random, 100), to
    if form < _ENDS:
        end, stop = queues.length[one], queues.length[two]
    elif form < _SWAP and to < queues.length[two]:
        stop = _run_end(data, queues, two, to) if end - begin > 1 else to + 1
    return _exchanged(queues, drafts, one, begin, end, two, to, stop)


@njit(cache=True, nogil=True)
def anneal(
    data: Data, queues: Queues, drafts: Drafts, random: Ints, moves: int, hot_s: float, cold_s: float
) -> float:
    """Make random moves, accepting a worse one with probability exp(-worse / temperature).

    Args:
        data: The problem.
        queues: Improved in place.
        drafts: Room.
        random: State of the random numbers, not 0; (1,).
        moves: To try; they concern the groups in `data.peers` and what stands in their way.
        hot_s: Temperature of the first, in seconds of penalty; 0 accepts improvements only.
        cold_s: Of the last; between them it falls geometrically.

    Returns:
        The change of the total cost.
    """
    data, queues, drafts, random = borrowed((data, queues, drafts, random))
    change = 0.0
    temperature = hot_s
    fall = (cold_s / hot_s) ** (_STEP / max(_STEP, moves)) if hot_s > 0.0 and cold_s > 0.0 else 1.0
    for move in range(moves):
        if move % _STEP == _STEP - 1:
            temperature *= fall
        bar = -temperature * math.log(_unit(random)) if temperature > 0.0 else -1e-9
        sides = _drafted(data, queues, drafts, random)
        before, cost = 0.0, 0.0
        for side in range(sides):
            before += queues.state[drafts.span[side, INSTANCE], drafts.span[side, BEGIN], REST]
        for side in range(sides):
            if data.chained and not in_order(data, queues, drafts, side):
                cost = INFEASIBLE
            else:
                cost += timed(data, queues, drafts, side, before + bar - cost, True)
            if cost >= INFEASIBLE:
                break
        if cost >= INFEASIBLE:
            continue
        for side in range(sides):
            adopt(queues, drafts, side)
        change += cost - before
    return change
