"""First plans for the fast solver, in compiled code; arrays as in `fast.data`."""

from numba import njit

from qlm.planner.arrays import Floats, Ints
from qlm.planner.fast.data import (
    CANNOT_RUN,
    CLOCK,
    COST,
    DRAIN,
    HOME,
    KIND,
    LOADED,
    MODEL,
    MOVE,
    TAIL,
    Data,
    Queues,
)
from qlm.planner.fast.queues import INFEASIBLE, in_order, set_queue, suffix_cost, swap_time


@njit(cache=True, nogil=True)
def append_all(data: Data, queues: Queues, order: Ints) -> bool:
    """Put groups, in this order, behind the queue where each ends first (list scheduling).

    Returns:
        False if a queue was full; the plan is then not complete.
    """
    work, who, fleet, swaps, prices = data.work, data.who, data.fleet, data.swaps, data.prices
    queue, length, state, held, spot = queues.queue, queues.length, queues.state, queues.warm, queues.spot
    for group in order:
        model, home = who[group, MODEL], who[group, HOME]
        best_s, best = INFEASIBLE, -1
        for at in range(data.able_count[model]):
            instance = data.able[model, at]
            kind, end = fleet[instance, KIND], length[instance]
            if end >= queue.shape[1] or work[kind, group, DRAIN] == CANNOT_RUN:
                continue
            before = queue[instance, end - 1] if end else -1
            loaded = who[before, MODEL] if before >= 0 else fleet[instance, LOADED]
            end_s = state[instance, end, CLOCK] + work[kind, group, DRAIN] + work[kind, group, TAIL]
            if loaded != model:
                end_s += swap_time(work, swaps, kind, held[instance, end], before, loaded, model)[0]
            if home >= 0 and home != instance:
                end_s += prices[MOVE]
            if end_s < best_s:
                best_s, best = end_s, instance
        if best < 0:
            return False
        end = length[best]
        queue[best, end] = group
        set_queue(
            work, who, fleet, swaps, prices, queue, length, state, held, spot, best, queue[best], end, end + 1
        )
    return True


@njit(cache=True, nogil=True)
def insert_all(data: Data, queues: Queues, new: Ints, order: Ints) -> bool:
    """Put groups, in this order, where each adds the least cost; of equal places, the first instance's last.

    Args:
        data: The problem.
        queues: Filled.
        new: Room; (C,).
        order: Groups.

    Returns:
        False if a group found no room.
    """
    work, who, fleet, swaps, prices = data.work, data.who, data.fleet, data.swaps, data.prices
    queue, length, state, held, spot = queues.queue, queues.length, queues.state, queues.warm, queues.spot
    for group in order:
        model = who[group, MODEL]
        best, best_instance, best_place = INFEASIBLE, -1, -1
        for at in range(data.able_count[model]):
            instance = data.able[model, at]
            if length[instance] >= queue.shape[1]:
                continue
            place, cost = _best_place(
                work,
                who,
                fleet,
                swaps,
                prices,
                queue,
                length,
                state,
                held,
                new,
                instance,
                group,
                data.chained,
                best,
            )
            if cost < best:
                best, best_instance, best_place = cost, instance, place
        if best_instance < 0:
            return False
        end = length[best_instance]
        for place in range(best_place):
            new[place] = queue[best_instance, place]
        new[best_place] = group
        for place in range(best_place, end):
            new[place + 1] = queue[best_instance, place]
        set_queue(
            work, who, fleet, swaps, prices, queue, length, state, held, spot,
            best_instance, new, best_place, end + 1,
        )  # fmt: skip
    return True


@njit(cache=True, nogil=True)
def _best_place(
    work: Floats,
    who: Ints,
    fleet: Ints,
    swaps: Floats,
    prices: Floats,
    queue: Ints,
    length: Ints,
    state: Floats,
    held: Ints,
    new: Ints,
    instance: int,
    group: int,
    chained: bool,
    best: float,
) -> tuple[int, float]:
    """Find the place where a group adds the least, if less than `best`: from the end to the front."""
    end = length[instance]
    for place in range(end):
        new[place] = queue[instance, place]
    new[end] = group
    place, best_place, behind = end, -1, 0.0
    while True:
        cost = INFEASIBLE
        if not chained or in_order(who, queue, instance, new, place, place + 1, end + 1):
            cost = suffix_cost(
                work, who, fleet, swaps, prices, length, state, held,
                instance, new, place, place + 1, end + 1, behind + best,
            )  # fmt: skip
        if cost - behind < best:
            best, best_place = cost - behind, place
        if place == 0:
            return best_place, best
        place -= 1
        behind += state[instance, place, COST]
        new[place + 1] = new[place]
        new[place] = group
