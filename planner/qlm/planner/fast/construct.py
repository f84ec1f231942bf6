"""First plans for the fast solver, in compiled code; arrays as in `fast.data`."""

from numba import njit

from qlm.planner.arrays import Ints
from qlm.planner.borrowed import borrowed
from qlm.planner.fast.data import (
    BEGIN,
    CANNOT_RUN,
    CLOCK,
    DRAIN,
    END,
    HOME,
    INSTANCE,
    KIND,
    LOADED,
    MODEL,
    MOVE,
    REST,
    SAME,
    TAIL,
    Data,
    Drafts,
    Queues,
)
from qlm.planner.fast.queues import INFEASIBLE, in_order, set_queue, swap_time, timed


@njit(cache=True, nogil=True)
def append_all(data: Data, queues: Queues, drafts: Drafts, order: Ints) -> bool:
    """Put groups, in this order, behind the queue where each ends first (list scheduling).

    Args:
        data: The problem.
        queues: Filled.
        drafts: Room.
        order: Groups.

    Returns:
        False if a queue was full; the plan is then not complete.
    """
    data, queues, drafts, order = borrowed((data, queues, drafts, order))
    for group in order:
        model = data.who[group, MODEL]
        best_s, best = INFEASIBLE, -1
        for at in range(data.able_count[model]):
            instance = data.able[model, at]
            if queues.length[instance] < queues.queue.shape[1]:
                end_s = _end_s(data, queues, instance, group)
                if end_s < best_s:
                    best_s, best = end_s, instance
        if best < 0:
            return False
        end = queues.length[best]
        drafts.span[0, INSTANCE], drafts.span[0, BEGIN] = best, end
        drafts.span[0, SAME] = drafts.span[0, END] = end + 1
        if end:
            drafts.groups[0, end - 1] = queues.queue[best, end - 1]
        drafts.groups[0, end] = group
        set_queue(data, queues, drafts)
    return True


@njit(cache=True, nogil=True, inline="always")
def _end_s(data: Data, queues: Queues, instance: int, group: int) -> float:
    """When a group would end at the end of a queue, its move priced in; `INFEASIBLE` where it cannot run."""
    work, kind, end = data.work, data.fleet[instance, KIND], queues.length[instance]
    model, home = data.who[group, MODEL], data.who[group, HOME]
    before = queues.queue[instance, end - 1] if end else -1
    loaded = data.who[before, MODEL] if before >= 0 else data.fleet[instance, LOADED]
    end_s = queues.state[instance, end, CLOCK] + work[kind, group, DRAIN] + work[kind, group, TAIL]
    if loaded != model:
        end_s += swap_time(data, kind, queues.warm[instance, end], before, loaded, model)[0]
    if home >= 0 and home != instance:
        end_s += data.prices[MOVE]
    return INFEASIBLE if work[kind, group, DRAIN] == CANNOT_RUN else end_s


@njit(cache=True, nogil=True)
def insert_all(data: Data, queues: Queues, drafts: Drafts, order: Ints) -> bool:
    """Put groups, in this order, where each adds the least cost; of equal places, the first instance's last.

    Args:
        data: The problem.
        queues: Filled.
        drafts: Room.
        order: Groups.

    Returns:
        False if a group found no room.
    """
    data, queues, drafts, order = borrowed((data, queues, drafts, order))
    for group in order:
        model = data.who[group, MODEL]
        best, best_instance, best_place = INFEASIBLE, -1, -1
        for at in range(data.able_count[model]):
            instance = data.able[model, at]
            if queues.length[instance] >= queues.queue.shape[1]:
                continue
            place, cost = _best_place(data, queues, drafts, instance, group, best)
            if cost < best:
                best, best_instance, best_place = cost, instance, place
        if best_instance < 0:
            return False
        end = queues.length[best_instance]
        for place in range(end):
            drafts.groups[0, place + (place >= best_place)] = queues.queue[best_instance, place]
        drafts.groups[0, best_place] = group
        drafts.span[0, INSTANCE], drafts.span[0, BEGIN] = best_instance, best_place
        drafts.span[0, SAME], drafts.span[0, END] = best_place + 1, end + 1
        set_queue(data, queues, drafts)
    return True


@njit(cache=True, nogil=True, inline="always")
def _best_place(
    data: Data, queues: Queues, drafts: Drafts, instance: int, group: int, best: float
) -> tuple[int, float]:
    """Find the place where a group adds the least, if less than `best`: from the end to the front."""
    end = queues.length[instance]
    for place in range(end):
        drafts.groups[0, place] = queues.queue[instance, place]
    drafts.groups[0, end] = group
    drafts.span[0, INSTANCE], drafts.span[0, END] = instance, end + 1
    best_place = -1
    for place in range(end, -1, -1):
        if place < end:
            drafts.groups[0, place + 1] = drafts.groups[0, place]
            drafts.groups[0, place] = group
        drafts.span[0, BEGIN], drafts.span[0, SAME] = place, place + 1
        if data.chained and not in_order(data, queues, drafts, 0):
            continue
        behind = queues.state[instance, place, REST]
        cost = timed(data, queues, drafts, 0, behind + best, True)
        if cost - behind < best:
            best, best_place = cost - behind, place
    return best_place, best
