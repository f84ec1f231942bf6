"""Timing and cost of virtual queues in compiled code; arrays as in `fast.data`."""

from typing import Final

from numba import njit

from qlm.planner.fast.data import (
    BEGIN,
    CHAIN,
    CLOCK,
    CLOCK_VAR,
    COST,
    DEADLINE,
    DRAIN,
    DRAIN_VAR,
    END,
    HALF,
    HASTE,
    HOME,
    INSTANCE,
    KIND,
    LOADED,
    MISS_WEIGHT,
    MODEL,
    MOVE,
    PER_DRAIN,
    PRIORITY,
    RANK,
    REQUESTS,
    REST,
    SAME,
    SWAP_COLD,
    SWAP_WARM,
    TAIL,
    TAIL_VAR,
    UNLOAD,
    Data,
    Drafts,
    Queues,
)
from qlm.planner.fast.penalty import group_penalty, summed_penalty

INFEASIBLE: Final = 1e300


@njit(cache=True, nogil=True, inline="always")
def swap_time(data: Data, kind: int, warm: int, before: int, loaded: int, model: int) -> tuple[float, float]:
    """Mean and variance of the time before a group of another model can start.

    Args:
        data: The problem.
        kind: Of the instance.
        warm: Models held, in bits.
        before: The group before, whose tail must end first; -1 for none.
        loaded: The model loaded; -1 for none.
        model: The next one.
    """
    swap_s = data.swaps[kind, model, SWAP_WARM] if warm & (1 << model) else data.swaps[kind, model, SWAP_COLD]
    var = 0.0
    if before >= 0:
        swap_s += data.work[kind, before, TAIL]
        var = data.work[kind, before, TAIL_VAR]
    if loaded >= 0:
        swap_s += data.swaps[kind, loaded, UNLOAD]
    return swap_s, var


@njit(cache=True, nogil=True, inline="always")
def cost_at(data: Data, instance: int, kind: int, clock_s: float, var: float, group: int) -> float:
    """Penalty and haste of a group that starts at a given time on an instance."""
    n = data.work[kind, group, REQUESTS]
    drain_s = data.work[kind, group, DRAIN]
    half_s = data.work[kind, group, HALF]
    first_s = clock_s + data.work[kind, group, TAIL]
    cost: float = HASTE * n * (first_s + 0.5 * drain_s + half_s)
    home = data.who[group, HOME]
    if home >= 0 and home != instance:
        cost += data.prices[MOVE]
    return cost + group_penalty(
        n,
        first_s - data.work[kind, group, DEADLINE],
        var,
        drain_s,
        data.work[kind, group, DRAIN_VAR],
        data.work[kind, group, TAIL_VAR],
        data.prices[MISS_WEIGHT],
        half_s,
        data.work[kind, group, PER_DRAIN],
    )


@njit(cache=True, nogil=True)
def in_order(data: Data, queues: Queues, drafts: Drafts, side: int) -> bool:
    """Whether the groups at [BEGIN, SAME) of a draft stand in the order of their chains."""
    who, groups = data.who, drafts.groups
    begin, end = drafts.span[side, BEGIN], drafts.span[side, END]
    for place in range(begin, drafts.span[side, SAME]):
        chain, rank = who[groups[side, place], CHAIN], who[groups[side, place], RANK]
        if chain < 0:
            continue
        for other in range(begin):
            before = queues.queue[drafts.span[side, INSTANCE], other]
            if who[before, CHAIN] == chain and who[before, RANK] > rank:
                return False
        for other in range(place + 1, end):
            after = groups[side, other]
            if who[after, CHAIN] == chain and who[after, RANK] < rank:
                return False
    return True


@njit(cache=True, nogil=True, inline="always")
def _against(data: Data, kind: int, before: int, group: int) -> bool:
    """Whether a group cannot run there, or must not stand behind another."""
    if before >= 0 and data.who[before, PRIORITY] > data.who[group, PRIORITY]:
        return True
    return bool(data.work[kind, group, DRAIN] < 0.0)


@njit(cache=True, nogil=True, inline="always")
def timed(data: Data, queues: Queues, drafts: Drafts, side: int, most: float, strict: bool) -> float:
    """Time a draft, as far as it is new.

    Args:
        data: The problem.
        queues: As they are.
        drafts: How one may be; its state is filled in.
        side: Which draft.
        most: Cost from which on nobody wants to know.
        strict: Whether the instance must be able to run the groups, in the order of their priorities.

    Returns:
        The cost of the places from `BEGIN` on; `INFEASIBLE` if it exceeds `most` (groups that start later
        cost no less, so that most ends that do are recognised at once), or against what is strict.
    """
    instance, begin, end = drafts.span[side, INSTANCE], drafts.span[side, BEGIN], drafts.span[side, END]
    same, shift = drafts.span[side, SAME], end - queues.length[instance]
    kind = data.fleet[instance, KIND]
    clock_s, var = queues.state[instance, begin, CLOCK], queues.state[instance, begin, CLOCK_VAR]
    warm = queues.warm[instance, begin]
    before = drafts.groups[side, begin - 1] if begin > 0 else -1
    loaded = data.who[before, MODEL] if before >= 0 else data.fleet[instance, LOADED]
    cost = 0.0
    for place in range(begin, end):
        group = drafts.groups[side, place]
        least = cost
        if place >= same and clock_s >= queues.state[instance, place - shift, CLOCK]:
            least += queues.state[instance, place - shift, REST]
        if least > most or (strict and _against(data, kind, before, group)):
            cost = INFEASIBLE
            break
        model = data.who[group, MODEL]
        if model != loaded:
            swap_s, swap_var = swap_time(data, kind, warm, before, loaded, model)
            clock_s += swap_s
            var += swap_var
            warm |= 1 << model
            loaded = model
        cost_s = cost_at(data, instance, kind, clock_s, var, group)
        cost += cost_s
        clock_s += data.work[kind, group, DRAIN]
        var += data.work[kind, group, DRAIN_VAR]
        drafts.state[side, place, COST] = cost_s
        drafts.state[side, place, CLOCK] = clock_s
        drafts.state[side, place, CLOCK_VAR] = var
        drafts.warm[side, place] = warm
        before = group
    return cost if cost <= most else INFEASIBLE


@njit(cache=True, nogil=True, inline="always")
def adopt(queues: Queues, drafts: Drafts, side: int) -> None:
    """Make a timed draft the queue of its instance."""
    instance, begin, end = drafts.span[side, INSTANCE], drafts.span[side, BEGIN], drafts.span[side, END]
    for place in range(begin, end):
        group = drafts.groups[side, place]
        queues.queue[instance, place] = group
        queues.spot[group, 0] = instance
        queues.spot[group, 1] = place
        queues.state[instance, place, COST] = drafts.state[side, place, COST]
        queues.state[instance, place + 1, CLOCK] = drafts.state[side, place, CLOCK]
        queues.state[instance, place + 1, CLOCK_VAR] = drafts.state[side, place, CLOCK_VAR]
        queues.warm[instance, place + 1] = drafts.warm[side, place]
    queues.length[instance] = end
    rest_s = 0.0
    queues.state[instance, end, REST] = 0.0
    for place in range(end - 1, -1, -1):
        rest_s += queues.state[instance, place, COST]
        queues.state[instance, place, REST] = rest_s


@njit(cache=True, nogil=True)
def set_queue(data: Data, queues: Queues, drafts: Drafts) -> None:
    """Make the first draft the queue of its instance, whatever it costs."""
    timed(data, queues, drafts, 0, INFEASIBLE, False)
    adopt(queues, drafts, 0)


@njit(cache=True, nogil=True)
def true_cost(data: Data, queues: Queues) -> tuple[float, float]:
    """Penalty of all queues, summed request by request, and haste."""
    work, who, fleet, prices = data.work, data.who, data.fleet, data.prices
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
                swap_s, swap_var = swap_time(data, kind, held[instance, place], before, loaded, model)
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
