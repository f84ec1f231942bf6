"""Timing and cost of virtual queues in compiled code; arrays as in `fast.data`."""

from typing import Final

from numba import njit

from qlm.planner.arrays import Floats, Ints
from qlm.planner.fast.data import (
    CHAIN,
    CLOCK,
    CLOCK_VAR,
    COST,
    DEADLINE,
    DRAIN,
    DRAIN_VAR,
    HASTE,
    HOME,
    KIND,
    LOADED,
    MISS_WEIGHT,
    MODEL,
    MOVE,
    PRIORITY,
    RANK,
    REQUESTS,
    SWAP_COLD,
    SWAP_WARM,
    TAIL,
    TAIL_VAR,
    UNLOAD,
    Data,
    Queues,
)
from qlm.planner.fast.penalty import group_penalty, summed_penalty

INFEASIBLE: Final = 1e300


@njit(cache=True, nogil=True, inline="always")
def swap_time(
    work: Floats, swaps: Floats, kind: int, warm: int, before: int, loaded: int, model: int
) -> tuple[float, float]:
    """Mean and variance of the time before a group of another model can start.

    Args:
        work: Of groups.
        swaps: Of models.
        kind: Of the instance.
        warm: Models held, in bits.
        before: The group before, whose tail must end first; -1 for none.
        loaded: The model loaded; -1 for none.
        model: The next one.
    """
    swap_s = swaps[kind, model, SWAP_WARM] if warm & (1 << model) else swaps[kind, model, SWAP_COLD]
    var = 0.0
    if before >= 0:
        swap_s += work[kind, before, TAIL]
        var = work[kind, before, TAIL_VAR]
    if loaded >= 0:
        swap_s += swaps[kind, loaded, UNLOAD]
    return swap_s, var


@njit(cache=True, nogil=True, inline="always")
def cost_at(
    work: Floats, who: Ints, prices: Floats, instance: int, kind: int, clock_s: float, var: float, group: int
) -> float:
    """Penalty and haste of a group that starts at a given time on an instance."""
    n = work[kind, group, REQUESTS]
    drain_s = work[kind, group, DRAIN]
    first_s = clock_s + work[kind, group, TAIL]
    cost: float = HASTE * n * (first_s + 0.5 * drain_s * (1.0 + 1.0 / n))
    home = who[group, HOME]
    if home >= 0 and home != instance:
        cost += prices[MOVE]
    late_s = first_s - work[kind, group, DEADLINE]
    if late_s > -1e15:
        cost += group_penalty(
            n,
            late_s,
            var,
            drain_s,
            work[kind, group, DRAIN_VAR],
            work[kind, group, TAIL_VAR],
            prices[MISS_WEIGHT],
        )
    return cost


@njit(cache=True, nogil=True)
def in_order(who: Ints, queue: Ints, instance: int, groups: Ints, begin: int, same: int, end: int) -> bool:
    """Whether the groups at [begin, same) stand in the order of their chains; arguments as below."""
    for place in range(begin, same):
        group = groups[place]
        chain, rank = who[group, CHAIN], who[group, RANK]
        if chain < 0:
            continue
        for other in range(begin):
            before = queue[instance, other]
            if who[before, CHAIN] == chain and who[before, RANK] > rank:
                return False
        for other in range(place + 1, end):
            after = groups[other]
            if who[after, CHAIN] == chain and who[after, RANK] < rank:
                return False
    return True


@njit(cache=True, nogil=True, inline="always")
def cost_from(length: Ints, state: Floats, instance: int, begin: int) -> float:
    """Present cost of the places from `begin` on."""
    cost = 0.0
    for place in range(begin, length[instance]):
        cost += state[instance, place, COST]
    return cost


@njit(cache=True, nogil=True)
def suffix_cost(
    work: Floats,
    who: Ints,
    fleet: Ints,
    swaps: Floats,
    prices: Floats,
    length: Ints,
    state: Floats,
    held: Ints,
    instance: int,
    groups: Ints,
    begin: int,
    same: int,
    end: int,
    most: float,
) -> float:
    """Cost of the places from `begin` on if the queue were `groups[:end]`.

    Args:
        work: As in `Data`, like the next four.
        who: Groups.
        fleet: Instances.
        swaps: Models.
        prices: Of misses and moves.
        length: As in `Queues`, like the next two.
        state: Clocks and costs.
        held: Its `warm`.
        instance: Whose queue.
        groups: The new queue; what is before `begin` but the last of it is not read.
        begin: Places before it are as now.
        same: The groups from this place on are as now, in the same order: the end of the queue.
        end: Its new length.
        most: Cost from which on nobody wants to know.

    Returns:
        The cost; `INFEASIBLE` if it exceeds `most` (groups that start later cost no less, so that most ends
        that do are recognised at once), if the instance cannot run a group, or against the priorities.
    """
    kind = fleet[instance, KIND]
    clock_s = state[instance, begin, CLOCK]
    var = state[instance, begin, CLOCK_VAR]
    warm = held[instance, begin]
    before = groups[begin - 1] if begin > 0 else -1
    loaded = who[before, MODEL] if before >= 0 else fleet[instance, LOADED]
    shift = end - length[instance]
    cost, rest = 0.0, cost_from(length, state, instance, same - shift)
    for place in range(begin, end):
        group = groups[place]
        if work[kind, group, DRAIN] < 0.0:
            return INFEASIBLE
        if before >= 0 and who[before, PRIORITY] > who[group, PRIORITY]:
            return INFEASIBLE
        if place >= same:
            if clock_s >= state[instance, place - shift, CLOCK] and cost + rest > most:
                return INFEASIBLE
            rest -= state[instance, place - shift, COST]
        model = who[group, MODEL]
        if model != loaded:
            swap_s, swap_var = swap_time(work, swaps, kind, warm, before, loaded, model)
            clock_s += swap_s
            var += swap_var
            warm |= 1 << model
            loaded = model
        cost += cost_at(work, who, prices, instance, kind, clock_s, var, group)
        if cost > most:
            return INFEASIBLE
        clock_s += work[kind, group, DRAIN]
        var += work[kind, group, DRAIN_VAR]
        before = group
    return cost


@njit(cache=True, nogil=True)
def set_queue(
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
    instance: int,
    groups: Ints,
    begin: int,
    end: int,
) -> None:
    """Make a queue `groups[:end]`, which agrees with it before place `begin`; arguments as above."""
    kind = fleet[instance, KIND]
    clock_s = state[instance, begin, CLOCK]
    var = state[instance, begin, CLOCK_VAR]
    warm = held[instance, begin]
    before = groups[begin - 1] if begin > 0 else -1
    loaded = who[before, MODEL] if before >= 0 else fleet[instance, LOADED]
    for place in range(begin, end):
        group = groups[place]
        model = who[group, MODEL]
        if model != loaded:
            swap_s, swap_var = swap_time(work, swaps, kind, warm, before, loaded, model)
            clock_s += swap_s
            var += swap_var
            warm |= 1 << model
            loaded = model
        queue[instance, place] = group
        state[instance, place, COST] = cost_at(work, who, prices, instance, kind, clock_s, var, group)
        spot[group, 0] = instance
        spot[group, 1] = place
        clock_s += work[kind, group, DRAIN]
        var += work[kind, group, DRAIN_VAR]
        state[instance, place + 1, CLOCK] = clock_s
        state[instance, place + 1, CLOCK_VAR] = var
        held[instance, place + 1] = warm
        before = group
    length[instance] = end


@njit(cache=True, nogil=True)
def total_cost(length: Ints, state: Floats) -> float:
    """Penalty and haste of all queues."""
    cost = 0.0
    for instance in range(len(length)):
        cost += cost_from(length, state, instance, 0)
    return cost


@njit(cache=True, nogil=True)
def true_cost(data: Data, queues: Queues) -> tuple[float, float]:
    """Penalty of all queues, summed request by request, and haste."""
    work, who, fleet, swaps, prices = data.work, data.who, data.fleet, data.swaps, data.prices
    queue, length, state, held = queues.queue, queues.length, queues.state, queues.warm
    penalty = haste = 0.0
    for instance in range(len(length)):
        kind = fleet[instance, KIND]
        before, loaded = -1, fleet[instance, LOADED]
        for place in range(length[instance]):
            group = queue[instance, place]
            clock_s, var = state[instance, place, CLOCK], state[instance, place, CLOCK_VAR]
            model = who[group, MODEL]
            if model != loaded:
                swap_s, swap_var = swap_time(work, swaps, kind, held[instance, place], before, loaded, model)
                clock_s += swap_s
                var += swap_var
                loaded = model
            n, drain_s = work[kind, group, REQUESTS], work[kind, group, DRAIN]
            first_s = clock_s + work[kind, group, TAIL]
            haste += HASTE * n * (first_s + 0.5 * drain_s * (1.0 + 1.0 / n))
            late_s = first_s - work[kind, group, DEADLINE]
            if late_s > -1e15 and state[instance, place, COST] > 0.0:
                penalty += summed_penalty(
                    n, late_s, var, drain_s,
                    work[kind, group, DRAIN_VAR], work[kind, group, TAIL_VAR], prices[MISS_WEIGHT],
                )  # fmt: skip
            if who[group, HOME] >= 0 and who[group, HOME] != instance:
                penalty += prices[MOVE]
            before = group
    return penalty, haste
