"""Construction heuristics of the fast solver, in compiled code; arrays as in `fast.data`.

Both take groups in a given order, and write them into empty queues.
"""

from qlm.planner.arrays import Ints
from qlm.planner.compiling.compiled import compiled
from qlm.planner.compiling.refcounts import without_refcounts
from qlm.planner.fast.clock import sleeping_tier, swap_time
from qlm.planner.fast.data import (
    BEGIN,
    CANNOT_RUN,
    CLOCK,
    END,
    HOME,
    INSTANCE,
    KIND,
    LOADED,
    MODEL,
    MOVE,
    REST,
    SAME,
    SERVICE,
    TAIL,
    Candidates,
    Data,
    Queues,
)
from qlm.planner.fast.queues import INFEASIBLE, chains_hold, evaluate, set_queue


@compiled()
def fill_all(data: Data, queues: Queues, candidates: Candidates, order: Ints, ends: Ints) -> None:
    """Fill each queue.

    Args:
        data: The problem.
        queues: Empty queues.
        candidates: Workspace.
        order: Groups of the first queue, in order, then those of the next one, and so on.
        ends: Where each queue begins in `order`, and where the last one ends; (I + 1,).
    """
    data, queues, candidates, order, ends = without_refcounts((data, queues, candidates, order, ends))
    for instance in range(len(ends) - 1):
        begin, length = ends[instance], ends[instance + 1] - ends[instance]
        for place in range(length):
            candidates.groups[0, place] = order[begin + place]
        candidates.span[0, INSTANCE], candidates.span[0, BEGIN] = instance, 0
        candidates.span[0, SAME] = candidates.span[0, END] = length
        set_queue(data, queues, candidates)


@compiled()
def append_all(data: Data, queues: Queues, candidates: Candidates, order: Ints) -> bool:
    """Append groups, in this order, to the queue where each ends first (list scheduling).

    Returns:
        False if all queues of a group were full; the plan is then incomplete.
    """
    data, queues, candidates, order = without_refcounts((data, queues, candidates, order))
    for group in order:
        model = data.traits[group, MODEL]
        best_s, best = INFEASIBLE, -1
        for at in range(data.eligible_count[model]):
            instance = data.eligible[model, at]
            if queues.length[instance] < queues.queue.shape[1]:
                end_s = _end_s(data, queues, instance, group)
                if end_s < best_s:
                    best_s, best = end_s, instance
        if best < 0:
            return False
        end = queues.length[best]
        candidates.span[0, INSTANCE], candidates.span[0, BEGIN] = best, end
        candidates.span[0, SAME] = candidates.span[0, END] = end + 1
        if end:
            candidates.groups[0, end - 1] = queues.queue[best, end - 1]
        candidates.groups[0, end] = group
        set_queue(data, queues, candidates)
    return True


@compiled(inline="always")
def _end_s(data: Data, queues: Queues, instance: int, group: int) -> float:
    """Return when an appended group would end, plus the price of its move; `INFEASIBLE` if it cannot run."""
    work, kind, end = data.work, data.fleet[instance, KIND], queues.length[instance]
    model, home = data.traits[group, MODEL], data.traits[group, HOME]
    before = queues.queue[instance, end - 1] if end else -1
    loaded = data.traits[before, MODEL] if before >= 0 else data.fleet[instance, LOADED]
    end_s = queues.state[instance, end, CLOCK] + work[kind, group, SERVICE] + work[kind, group, TAIL]
    if loaded != model:
        tier = sleeping_tier(data, queues, instance, end, model)
        end_s += swap_time(data, instance, tier, before, loaded, model, 0.0)[0]
    if home >= 0 and home != instance:
        end_s += data.prices[MOVE]
    return INFEASIBLE if work[kind, group, SERVICE] == CANNOT_RUN else end_s


@compiled()
def insert_all(data: Data, queues: Queues, candidates: Candidates, order: Ints) -> bool:
    """Insert groups, in this order, where each adds the least cost (cheapest insertion).

    Of equal places, the last one of the first instance is taken.

    Returns:
        False if all queues of a group were full; the plan is then incomplete.
    """
    data, queues, candidates, order = without_refcounts((data, queues, candidates, order))
    for group in order:
        model = data.traits[group, MODEL]
        best, best_instance, best_place = INFEASIBLE, -1, -1
        for at in range(data.eligible_count[model]):
            instance = data.eligible[model, at]
            if queues.length[instance] >= queues.queue.shape[1]:
                continue
            place, cost = _best_place(data, queues, candidates, instance, group, best)
            if cost < best:
                best, best_instance, best_place = cost, instance, place
        if best_instance < 0:
            return False
        end = queues.length[best_instance]
        for place in range(end):
            candidates.groups[0, place + (place >= best_place)] = queues.queue[best_instance, place]
        candidates.groups[0, best_place] = group
        candidates.span[0, INSTANCE], candidates.span[0, BEGIN] = best_instance, best_place
        candidates.span[0, SAME], candidates.span[0, END] = best_place + 1, end + 1
        set_queue(data, queues, candidates)
    return True


@compiled(inline="always")
def _best_place(
    data: Data, queues: Queues, candidates: Candidates, instance: int, group: int, best: float
) -> tuple[int, float]:
    """Find the last place where a group adds least, and this cost, if less than `best`."""
    end = queues.length[instance]
    for place in range(end):
        candidates.groups[0, place] = queues.queue[instance, place]
    candidates.groups[0, end] = group
    candidates.span[0, INSTANCE], candidates.span[0, END] = instance, end + 1
    best_place = -1
    for place in range(end, -1, -1):
        if place < end:
            candidates.groups[0, place + 1] = candidates.groups[0, place]
            candidates.groups[0, place] = group
        candidates.span[0, BEGIN], candidates.span[0, SAME] = place, place + 1
        if data.has_chains and not chains_hold(
            data.traits, queues.queue, candidates.groups, candidates.span, 0
        ):
            continue
        behind = queues.state[instance, place, REST]
        cost = evaluate(data, queues, candidates, 0, behind + best, True)
        if cost - behind < best:
            best, best_place = cost - behind, place
    return best_place, best
