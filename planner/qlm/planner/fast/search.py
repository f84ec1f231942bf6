"""Simulated annealing over virtual queues in compiled code.

A move takes a run of groups (one group, or several of one model) out of a queue and puts it elsewhere,
exchanges two runs, or exchanges the ends of two queues. Most targets are places beside groups of the same
model, where no swap is paid. A move is judged by the cost of the changed ends of two queues, and given up
as soon as these exceed what would be accepted.
"""

import math
from typing import Final

from numba import njit

from qlm.planner.arrays import Floats, Ints
from qlm.planner.fast.data import COST, MODEL, Data, Queues
from qlm.planner.fast.queues import INFEASIBLE, cost_from, in_order, set_queue, suffix_cost

RUN_MAX: Final = 12
"""Groups that one move takes along at most."""

# Shares of moves, in percent; found on the live problem of the benchmarks, where they matter little.
_COSTLY: Final = 50
"""Begin with the costliest of three groups, not with any."""
_RUN: Final = 20
"""Take along a run of groups of one model."""
_PEER: Final = 75
"""Go beside a group of the same model, not anywhere."""
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


@njit(cache=True, nogil=True)
def _costlier(state: Floats, spot: Ints, one: int, other: int) -> int:
    """Return the group that costs more where it stands."""
    one_s = state[spot[one, 0], spot[one, 1], COST]
    return other if state[spot[other, 0], spot[other, 1], COST] > one_s else one


@njit(cache=True, nogil=True)
def _target(
    length: Ints,
    spot: Ints,
    peers: Ints,
    peers_from: Ints,
    able: Ints,
    able_count: Ints,
    random: Ints,
    model: int,
) -> tuple[int, int]:
    """Choose an instance and a place for groups of a model: beside one of its groups, or anywhere."""
    if _below(random, 100) < _PEER:
        first = peers_from[model]
        other = peers[first + _below(random, peers_from[model + 1] - first)]
        return spot[other, 0], spot[other, 1] + _below(random, 2)
    instance = able[model, _below(random, able_count[model])]
    return instance, _below(random, length[instance] + 1)


@njit(cache=True, nogil=True, inline="always")
def _run_end(who: Ints, queue: Ints, length: Ints, instance: int, begin: int) -> int:
    """Place after the last group of the run of one model that goes on at `begin`."""
    model = who[queue[instance, begin], MODEL]
    end = begin + 1
    while end < length[instance] and who[queue[instance, end], MODEL] == model:
        end += 1
    return end


@njit(cache=True, nogil=True)
def _within(
    work: Floats,
    who: Ints,
    fleet: Ints,
    swaps: Floats,
    prices: Floats,
    queue: Ints,
    length: Ints,
    state: Floats,
    held: Ints,
    spot: Ints,
    new: Ints,
    instance: int,
    begin: int,
    end: int,
    to: int,
    chained: bool,
    bar: float,
) -> float:
    """Move places [begin, end) of a queue to another place of it; return the change, 0 if not made."""
    if begin <= to <= end:
        return 0.0
    size = end - begin
    low, high = min(begin, to), max(end, to)
    for place in range(max(0, low - 1), length[instance]):
        new[place] = queue[instance, place]
    if to < begin:
        for at in range(size):
            new[to + at] = queue[instance, begin + at]
        for place in range(to, begin):
            new[place + size] = queue[instance, place]
    else:
        for place in range(end, to):
            new[place - size] = queue[instance, place]
        for at in range(size):
            new[to - size + at] = queue[instance, begin + at]
    if chained and not in_order(who, queue, instance, new, low, high, length[instance]):
        return 0.0
    before = cost_from(length, state, instance, low)
    after = suffix_cost(
        work, who, fleet, swaps, prices, length, state, held,
        instance, new, low, high, length[instance], before + bar,
    )  # fmt: skip
    if after >= INFEASIBLE:
        return 0.0
    set_queue(
        work, who, fleet, swaps, prices, queue, length, state, held, spot,
        instance, new, low, length[instance],
    )  # fmt: skip
    return after - before


@njit(cache=True, nogil=True, inline="always")
def _spliced(
    queue: Ints, new: Ints, one: int, begin: int, end: int, after: int, two: int, start: int, stop: int
) -> None:
    """Write queue `one` with [start, stop) of queue `two` instead of its [begin, end), from begin - 1 on."""
    if begin > 0:
        new[begin - 1] = queue[one, begin - 1]
    for place in range(start, stop):
        new[begin + place - start] = queue[two, place]
    shift = stop - start - (end - begin)
    for place in range(begin + stop - start, after):
        new[place] = queue[one, place - shift]


@njit(cache=True, nogil=True)
def _exchange(
    work: Floats,
    who: Ints,
    fleet: Ints,
    swaps: Floats,
    prices: Floats,
    queue: Ints,
    length: Ints,
    state: Floats,
    held: Ints,
    spot: Ints,
    scratch: Ints,
    one: int,
    begin: int,
    end: int,
    two: int,
    start: int,
    stop: int,
    chained: bool,
    bar: float,
) -> float:
    """Exchange [begin, end) of queue `one` with [start, stop) of `two`; return the change, or 0."""
    new_one, new_two = scratch[0], scratch[1]
    given, taken = end - begin, stop - start
    after_one, after_two = length[one] - given + taken, length[two] - taken + given
    if after_one > queue.shape[1] or after_two > queue.shape[1]:
        return 0.0
    before = cost_from(length, state, one, begin) + cost_from(length, state, two, start)
    _spliced(queue, new_one, one, begin, end, after_one, two, start, stop)
    if chained and not in_order(who, queue, one, new_one, begin, begin + taken, after_one):
        return 0.0
    first = suffix_cost(
        work, who, fleet, swaps, prices, length, state, held,
        one, new_one, begin, begin + taken, after_one, before + bar,
    )  # fmt: skip
    if first >= INFEASIBLE:
        return 0.0
    _spliced(queue, new_two, two, start, stop, after_two, one, begin, end)
    if chained and not in_order(who, queue, two, new_two, start, start + given, after_two):
        return 0.0
    second = suffix_cost(
        work, who, fleet, swaps, prices, length, state, held,
        two, new_two, start, start + given, after_two, before + bar - first,
    )  # fmt: skip
    if second >= INFEASIBLE:
        return 0.0
    set_queue(
        work, who, fleet, swaps, prices, queue, length, state, held, spot, one, new_one, begin, after_one
    )
    set_queue(
        work, who, fleet, swaps, prices, queue, length, state, held, spot, two, new_two, start, after_two
    )
    return first + second - before


@njit(cache=True, nogil=True)
def anneal(
    data: Data, queues: Queues, scratch: Ints, random: Ints, moves: int, hot_s: float, cold_s: float
) -> float:
    """Make random moves, accepting a worse one with probability exp(-worse / temperature).

    Args:
        data: The problem.
        queues: Improved in place.
        scratch: Room; (2, C).
        random: State of the random numbers, not 0; (1,).
        moves: To try; they concern the groups in `data.peers` and what stands in their way.
        hot_s: Temperature of the first, in seconds of penalty; 0 accepts improvements only.
        cold_s: Of the last; between them it falls geometrically.

    Returns:
        The change of the total cost.
    """
    work, who, fleet, swaps, prices = data.work, data.who, data.fleet, data.swaps, data.prices
    queue, length, state, held, spot = queues.queue, queues.length, queues.state, queues.warm, queues.spot
    peers, peers_from, able, able_count = data.peers, data.peers_from, data.able, data.able_count
    change = 0.0
    temperature = hot_s
    fall = (cold_s / hot_s) ** (_STEP / max(_STEP, moves)) if hot_s > 0.0 and cold_s > 0.0 else 1.0
    for move in range(moves):
        if move % _STEP == _STEP - 1:
            temperature *= fall
        bar = -temperature * math.log(_unit(random)) if temperature > 0.0 else -1e-9
        group = peers[_below(random, len(peers))]
        if _below(random, 100) < _COSTLY:
            group = _costlier(state, spot, group, peers[_below(random, len(peers))])
            group = _costlier(state, spot, group, peers[_below(random, len(peers))])
        one, begin = spot[group, 0], spot[group, 1]
        end = begin + 1
        if _below(random, 100) < _RUN:
            end = min(_run_end(who, queue, length, one, begin), begin + RUN_MAX)
            if end - begin > 1 and _below(random, 2):
                end = begin + 1 + _below(random, end - begin)
        two, to = _target(length, spot, peers, peers_from, able, able_count, random, who[group, MODEL])
        if two == one:
            change += _within(
                work, who, fleet, swaps, prices, queue, length, state, held, spot,
                scratch[0], one, begin, end, to, data.chained, bar,
            )  # fmt: skip
            continue
        form = _below(random, 100)
        stop = to
        if form < _ENDS:
            end, stop = length[one], length[two]
        elif form < _SWAP and to < length[two]:
            stop = to + 1
            if end - begin > 1:
                stop = min(_run_end(who, queue, length, two, to), to + RUN_MAX)
        change += _exchange(
            work, who, fleet, swaps, prices, queue, length, state, held, spot,
            scratch, one, begin, end, two, to, stop, data.chained, bar,
        )  # fmt: skip
    return change
