"""Simulated annealing over virtual queues, in compiled code.

A move relocates a run of groups (one group, or several of one model), exchanges two runs, or exchanges the
ends of two queues (relocation, exchange and 2-opt* of vehicle routing). Most targets are places beside
groups of the same model, where no swap is paid. A move is priced by the changed ends of two queues, and
rejected as soon as these cost more than the acceptance threshold.
"""

import math
from typing import Final

from qlm.planner.arrays import Ints
from qlm.planner.compiling.compiled import compiled
from qlm.planner.compiling.refcounts import without_refcounts
from qlm.planner.fast.data import (
    BEGIN,
    COST,
    END,
    INSTANCE,
    MODEL,
    PEER,
    REST,
    SAME,
    Candidates,
    Data,
    Queues,
)
from qlm.planner.fast.queues import INFEASIBLE, accept, chains_hold, evaluate
from qlm.planner.fast.settings import Neighborhood

_MOVES_PER_TEMPERATURE: Final = 64


@compiled(inline="always")
def _random_bits(state: Ints) -> int:
    """Return 31 random bits: the high half of Marsaglia's 64-bit xorshift; its state is never 0."""
    bits: int = state[0]
    bits ^= bits << 13
    bits ^= (bits >> 7) & 0x1FFFFFFFFFFFFFF
    bits ^= bits << 17
    state[0] = bits
    return (bits >> 33) & 0x7FFFFFFF


@compiled(inline="always")
def _random_below(state: Ints, bound: int) -> int:
    return (_random_bits(state) * bound) >> 31


@compiled(inline="always")
def _random_unit(state: Ints) -> float:
    return (_random_bits(state) + 1.0) / 2147483648.0


@compiled(inline="always")
def _choose_group(data: Data, queues: Queues, random: Ints, moves: Neighborhood) -> int:
    group: int = data.peers[_random_below(random, len(data.peers))]
    if _random_below(random, 100) < moves.costly_percent:
        cost = queues.state[queues.position[group, 0], queues.position[group, 1], COST]
        for _ in range(2):
            other = data.peers[_random_below(random, len(data.peers))]
            other_cost = queues.state[queues.position[other, 0], queues.position[other, 1], COST]
            if other_cost > cost:
                group, cost = other, other_cost
    return group


@compiled(inline="always")
def _choose_target(
    data: Data, queues: Queues, random: Ints, moves: Neighborhood, group: int
) -> tuple[int, int]:
    """Choose an instance and a place for a group: beside one of the same model, or anywhere."""
    model = data.traits[group, MODEL]
    if _random_below(random, 100) < moves.peer_percent:
        first, behind = data.peers_from[model], data.peers_from[model + 1]
        span = min(2 * moves.near_groups + 1, behind - first)
        near = max(first, min(data.traits[group, PEER] - moves.near_groups, behind - span)) + _random_below(
            random, span
        )
        other = data.peers[near]
        return queues.position[other, 0], queues.position[other, 1] + _random_below(random, 2)
    instance = data.eligible[model, _random_below(random, data.eligible_count[model])]
    return instance, _random_below(random, queues.length[instance] + 1)


@compiled(inline="always")
def _run_end(data: Data, queues: Queues, instance: int, begin: int, groups_max: int) -> int:
    """Return the place after the run of one model at `begin`, cut at `groups_max` groups."""
    model = data.traits[queues.queue[instance, begin], MODEL]
    most = min(queues.length[instance], begin + groups_max)
    end = begin + 1
    while end < most and data.traits[queues.queue[instance, end], MODEL] == model:
        end += 1
    return end


@compiled(inline="always")
def _propose_relocation(
    queues: Queues, candidates: Candidates, instance: int, begin: int, end: int, to: int
) -> int:
    """Propose to move places [begin, end) of a queue within it; return the number of candidate queues."""
    if begin <= to <= end:
        return 0
    size = end - begin
    low, high = min(begin, to), max(end, to)
    for place in range(max(0, low - 1), queues.length[instance]):
        candidates.groups[0, place] = queues.queue[instance, place]
    if to < begin:
        for at in range(size):
            candidates.groups[0, to + at] = queues.queue[instance, begin + at]
        for place in range(to, begin):
            candidates.groups[0, place + size] = queues.queue[instance, place]
    else:
        for place in range(end, to):
            candidates.groups[0, place - size] = queues.queue[instance, place]
        for at in range(size):
            candidates.groups[0, to - size + at] = queues.queue[instance, begin + at]
    candidates.span[0, INSTANCE], candidates.span[0, BEGIN] = instance, low
    candidates.span[0, SAME], candidates.span[0, END] = high, queues.length[instance]
    return 1


@compiled(inline="always")
def _propose_exchange(
    queues: Queues, candidates: Candidates, one: int, begin: int, end: int, two: int, start: int, stop: int
) -> int:
    """Propose to exchange [begin, end) of `one` for [start, stop) of `two`; return the number."""
    grows = (stop - start) - (end - begin)
    capacity = queues.queue.shape[1]
    if queues.length[one] + grows > capacity or queues.length[two] - grows > capacity:
        return 0
    for side in range(2):
        here, low, high = (one, begin, end) if side == 0 else (two, start, stop)
        there, first, last = (two, start, stop) if side == 0 else (one, begin, end)
        same = low + last - first
        if low > 0:
            candidates.groups[side, low - 1] = queues.queue[here, low - 1]
        for at in range(last - first):
            candidates.groups[side, low + at] = queues.queue[there, first + at]
        for at in range(queues.length[here] - high):
            candidates.groups[side, same + at] = queues.queue[here, high + at]
        candidates.span[side, INSTANCE], candidates.span[side, BEGIN] = here, low
        candidates.span[side, SAME], candidates.span[side, END] = same, same + queues.length[here] - high
    return 2


@compiled(inline="always")
def _propose_move(
    data: Data, queues: Queues, candidates: Candidates, random: Ints, moves: Neighborhood
) -> int:
    """Propose a random move; return the number of queues that it changes."""
    group = _choose_group(data, queues, random, moves)
    one, begin = queues.position[group, 0], queues.position[group, 1]
    end = begin + 1
    if _random_below(random, 100) < moves.run_percent:
        end = _run_end(data, queues, one, begin, moves.run_groups_max)
        if end - begin > 1 and _random_below(random, 2):
            end = begin + 1 + _random_below(random, end - begin)
    two, to = _choose_target(data, queues, random, moves, group)
    if two == one:
        return _propose_relocation(queues, candidates, one, begin, end, to)
    form, stop = _random_below(random, 100), to
    if form < moves.ends_percent:
        end, stop = queues.length[one], queues.length[two]
    elif form < moves.exchange_percent and to < queues.length[two]:
        stop = _run_end(data, queues, two, to, moves.run_groups_max) if end - begin > 1 else to + 1
    return _propose_exchange(queues, candidates, one, begin, end, two, to, stop)


@compiled()
def anneal(
    data: Data,
    queues: Queues,
    candidates: Candidates,
    random: Ints,
    neighborhood: Neighborhood,
    moves: int,
    hot_s: float,
    cold_s: float,
) -> float:
    """Try random moves; accept a worse solution with probability exp(-worsening / temperature).

    Args:
        data: The problem.
        queues: Incumbent, changed in place.
        candidates: Workspace for proposed queues.
        random: State of the random numbers, not 0; (1,).
        neighborhood: Probabilities and sizes of moves.
        moves: Number of moves; they start from the groups in `data.peers`.
        hot_s: First temperature, in seconds of penalty; 0 accepts improvements only.
        cold_s: Last temperature; between them it falls geometrically.

    Returns:
        The change of the total cost.
    """
    data, queues, candidates, random = without_refcounts((data, queues, candidates, random))
    change = 0.0
    temperature = hot_s
    steps = max(_MOVES_PER_TEMPERATURE, moves)
    fall = (cold_s / hot_s) ** (_MOVES_PER_TEMPERATURE / steps) if hot_s > 0.0 and cold_s > 0.0 else 1.0
    for move in range(moves):
        if move % _MOVES_PER_TEMPERATURE == _MOVES_PER_TEMPERATURE - 1:
            temperature *= fall
        # Drawing the threshold first is the Metropolis rule, and lets the evaluation stop early.
        threshold = -temperature * math.log(_random_unit(random)) if temperature > 0.0 else -1e-9
        sides = _propose_move(data, queues, candidates, random, neighborhood)
        before, cost = 0.0, 0.0
        for side in range(sides):
            before += queues.state[candidates.span[side, INSTANCE], candidates.span[side, BEGIN], REST]
        for side in range(sides):
            if data.has_chains and not chains_hold(
                data.traits, queues.queue, candidates.groups, candidates.span, side
            ):
                cost = INFEASIBLE
            else:
                cost += evaluate(data, queues, candidates, side, before + threshold - cost, True)
            if cost >= INFEASIBLE:
                break
        if cost >= INFEASIBLE:
            continue
        for side in range(sides):
            accept(queues, candidates, side)
        change += cost - before
    return change
