"""Timing and cost of virtual queues in compiled code; arrays as in `fast.data`."""

from typing import Final

from qlm.planner.arrays import Ints
from qlm.planner.compiling.compiled import compiled
from qlm.planner.fast.clock import class_sum, sleeping_tier, swap_time, tier_if_fits
from qlm.planner.fast.data import (
    ALLOWED,
    BEGIN,
    CHAIN,
    CLASS,
    CLASS_SD,
    CLASS_SUM,
    CLOCK,
    CLOCK_VAR,
    COMPLETION_WEIGHT,
    COST,
    DEADLINE,
    END,
    HALF,
    HOME,
    INSTANCE,
    KIND,
    LEAST_VAR,
    LOADED,
    MISS_WEIGHT,
    MODEL,
    MOVE,
    OTHER_VAR_FROM,
    OTHER_VAR_TO,
    PRIORITY,
    PROMISE,
    RANK,
    REQUESTS,
    REST,
    SAME,
    SERVICE,
    SERVICE_RATE,
    SERVICE_VAR,
    SPEED_SD,
    SPEED_SUM,
    TAIL,
    TAIL_SPEED_SD,
    TAIL_VAR,
    Candidates,
    Data,
    Queues,
)
from qlm.planner.fast.penalty import GroupWork, group_penalty, promised_penalty, summed_penalty
from qlm.planner.swapping.compiled import copy_row, swap_models, tier_of

INFEASIBLE: Final = 1e300


@compiled(inline="always")
def cost_at(
    data: Data,
    instance: int,
    kind: int,
    clock_s: float,
    var: float,
    speed_sum: float,
    of_class: float,
    group: int,
) -> float:
    """Return penalty and completion cost of a group that starts at a given time.

    Args:
        data: The problem.
        instance: The instance.
        kind: Its kind.
        clock_s: Mean start.
        var: Its variance.
        speed_sum: Its standard deviation by the error of the speed.
        of_class: Its standard deviation by the error of the group's class.
        group: The group.
    """
    n, service_s = data.work[kind, group, REQUESTS], data.work[kind, group, SERVICE]
    of_group = GroupWork(
        n,
        service_s,
        data.work[kind, group, SERVICE_VAR],
        data.work[kind, group, TAIL_VAR],
        data.work[kind, group, HALF],
        data.work[kind, group, SERVICE_RATE],
        data.work[kind, group, OTHER_VAR_FROM],
        data.work[kind, group, OTHER_VAR_TO],
        data.work[kind, group, LEAST_VAR],
    )
    first_s = clock_s + data.work[kind, group, TAIL]
    cost: float = COMPLETION_WEIGHT * n * (first_s + 0.5 * service_s + of_group.half_s)
    home = data.traits[group, HOME]
    if home >= 0 and home != instance:
        cost += data.prices[MOVE]
    cross_var = 0.0
    if data.has_shared:
        tail_sd, speed_sd = data.work[kind, group, TAIL_SPEED_SD], data.work[kind, group, SPEED_SD]
        var += 2.0 * speed_sum * tail_sd
        cross_var = 2.0 * ((speed_sum + tail_sd) * speed_sd + of_class * data.work[kind, group, CLASS_SD])
    late_s, weight_s = first_s - data.work[kind, group, DEADLINE], data.prices[MISS_WEIGHT]
    penalty: float = group_penalty(of_group, late_s, var, weight_s, cross_var)
    promise_s, allowed = data.prices[PROMISE], data.work[kind, group, ALLOWED]
    if promise_s > 0.0 and allowed < n and penalty > weight_s * allowed:
        short = promised_penalty(of_group, late_s, var, weight_s, cross_var, allowed, promise_s)
        penalty = max(penalty, short)
    return cost + penalty


@compiled()
def chains_hold(traits: Ints, queue: Ints, groups: Ints, span: Ints, side: int) -> bool:
    """Return True if the groups at [BEGIN, SAME) of a candidate keep the order of their chains.

    Args:
        traits: Of `Data`.
        queue: Of `Queues`.
        groups: Of `Candidates`.
        span: Of `Candidates`.
        side: Index of the candidate.
    """
    begin, end = span[side, BEGIN], span[side, END]
    for place in range(begin, span[side, SAME]):
        chain, rank = traits[groups[side, place], CHAIN], traits[groups[side, place], RANK]
        if chain < 0:
            continue
        for other in range(begin):
            before = queue[span[side, INSTANCE], other]
            if traits[before, CHAIN] == chain and traits[before, RANK] > rank:
                return False
        for other in range(place + 1, end):
            after = groups[side, other]
            if traits[after, CHAIN] == chain and traits[after, RANK] < rank:
                return False
    return True


@compiled(inline="always")
def _forbidden(data: Data, kind: int, before: int, group: int) -> bool:
    """Return True if a group cannot run there, or its priority forbids to follow another."""
    if before >= 0 and data.traits[before, PRIORITY] > data.traits[group, PRIORITY]:
        return True
    return bool(data.work[kind, group, SERVICE] < 0.0)


@compiled(inline="always")
def _copy_memory(queues: Queues, candidates: Candidates, side: int, place: int, asleep: int) -> int:
    """Copy what sleeps before a place, for a swap there to change it; return its new row."""
    begin, instance = candidates.span[side, BEGIN], candidates.span[side, INSTANCE]
    if asleep <= begin:
        copy_row(queues.memory, instance, asleep, candidates.memory, side, place + 1)
    else:
        copy_row(candidates.memory, side, asleep, candidates.memory, side, place + 1)
    return place + 1


@compiled(inline="always")
def _swap_memory(
    data: Data,
    queues: Queues,
    candidates: Candidates,
    side: int,
    place: int,
    asleep: int,
    loaded: int,
    model: int,
) -> tuple[int, int]:
    """Put the loaded model to sleep, and wake another; return the tier of that, and what sleeps then.

    What sleeps is as in `memory_at`, before and after.
    """
    instance = candidates.span[side, INSTANCE]
    kind = data.fleet[instance, KIND]
    if data.fits[kind]:
        tier = tier_if_fits(data, instance, asleep, model)
        return tier, -(-asleep | (1 << loaded)) if loaded >= 0 else asleep
    asleep = _copy_memory(queues, candidates, side, place, asleep)
    tier = tier_of(candidates.memory, side, asleep, model)
    swap_models(data.memory, candidates.memory, side, asleep, kind, loaded, model)
    return tier, asleep


@compiled(inline="always")
def evaluate(
    data: Data, queues: Queues, candidates: Candidates, side: int, most: float, strict: bool
) -> float:
    """Compute times and cost of a candidate queue from its first changed place on.

    Args:
        data: The problem.
        queues: The incumbent.
        candidates: The candidate's state is filled in.
        side: Index of the candidate, 0 or 1.
        most: Upper bound on the cost; the evaluation stops above it.
        strict: Require that the instance runs the groups, in the order of their priorities.

    Returns:
        The cost of the places from `BEGIN` on; `INFEASIBLE` if it exceeds `most`, or if `strict` is violated.
    """
    instance, begin, end = (
        candidates.span[side, INSTANCE],
        candidates.span[side, BEGIN],
        candidates.span[side, END],
    )
    same, shift = candidates.span[side, SAME], end - queues.length[instance]
    kind = data.fleet[instance, KIND]
    clock_s, var = queues.state[instance, begin, CLOCK], queues.state[instance, begin, CLOCK_VAR]
    asleep = queues.memory_at[instance, begin]
    speed_sum = queues.state[instance, begin, SPEED_SUM]
    before = candidates.groups[side, begin - 1] if begin > 0 else -1
    loaded = data.traits[before, MODEL] if before >= 0 else data.fleet[instance, LOADED]
    cost = 0.0
    for place in range(begin, end):
        group = candidates.groups[side, place]
        # A group that starts later costs no less: the present cost of an unchanged end is a lower bound.
        least = cost
        if place >= same and clock_s >= queues.state[instance, place - shift, CLOCK]:
            least += queues.state[instance, place - shift, REST]
        if least > most or (strict and _forbidden(data, kind, before, group)):
            cost = INFEASIBLE
            break
        model = data.traits[group, MODEL]
        if model != loaded:
            tier, asleep = _swap_memory(data, queues, candidates, side, place, asleep, loaded, model)
            swap_s, swap_var, swap_sd = swap_time(data, instance, tier, before, loaded, model, speed_sum)
            clock_s += swap_s
            var += swap_var
            speed_sum += swap_sd
            loaded = model
        class_sd, of_class = data.work[kind, group, CLASS_SD], 0.0
        if data.has_shared and data.traits[group, CLASS] >= 0:
            of_class = class_sum(data, queues, candidates, side, place, data.traits[group, CLASS])
        cost_s = cost_at(data, instance, kind, clock_s, var, speed_sum, of_class, group)
        cost += cost_s
        clock_s += data.work[kind, group, SERVICE]
        var += data.work[kind, group, SERVICE_VAR]
        if data.has_shared:
            speed_sd = data.work[kind, group, SPEED_SD]
            var += 2.0 * (speed_sum * speed_sd + of_class * class_sd)
            speed_sum += speed_sd
            candidates.state[side, place, SPEED_SUM] = speed_sum
            candidates.state[side, place, CLASS_SUM] = of_class + class_sd
        candidates.state[side, place, COST] = cost_s
        candidates.state[side, place, CLOCK] = clock_s
        candidates.state[side, place, CLOCK_VAR] = var
        candidates.memory_at[side, place] = asleep
        before = group
    return cost if cost <= most else INFEASIBLE


@compiled(inline="always")
def accept(queues: Queues, candidates: Candidates, side: int) -> None:
    """Make an evaluated candidate the queue of its instance."""
    instance, begin, end = (
        candidates.span[side, INSTANCE],
        candidates.span[side, BEGIN],
        candidates.span[side, END],
    )
    for place in range(begin, end):
        group = candidates.groups[side, place]
        queues.queue[instance, place] = group
        queues.position[group, 0] = instance
        queues.position[group, 1] = place
        queues.state[instance, place, COST] = candidates.state[side, place, COST]
        queues.state[instance, place + 1, CLOCK] = candidates.state[side, place, CLOCK]
        queues.state[instance, place + 1, CLOCK_VAR] = candidates.state[side, place, CLOCK_VAR]
        asleep = candidates.memory_at[side, place]
        queues.memory_at[instance, place + 1] = asleep
        if asleep == place + 1:
            copy_row(candidates.memory, side, asleep, queues.memory, instance, asleep)
        queues.state[instance, place + 1, SPEED_SUM] = candidates.state[side, place, SPEED_SUM]
        queues.state[instance, place, CLASS_SUM] = candidates.state[side, place, CLASS_SUM]
    queues.length[instance] = end
    rest_s = 0.0
    queues.state[instance, end, REST] = 0.0
    for place in range(end - 1, -1, -1):
        rest_s += queues.state[instance, place, COST]
        queues.state[instance, place, REST] = rest_s


@compiled()
def set_queue(data: Data, queues: Queues, candidates: Candidates) -> None:
    """Make the first candidate the queue of its instance, whatever it costs."""
    evaluate(data, queues, candidates, 0, INFEASIBLE, False)
    accept(queues, candidates, 0)


@compiled()
def true_cost(data: Data, queues: Queues) -> tuple[float, float, float]:
    """Return the penalty of all queues, summed request by request, completion cost, and price of promises."""
    work, traits, fleet, prices = data.work, data.traits, data.fleet, data.prices
    queue, length, state = queues.queue, queues.length, queues.state
    penalty = completion = promises = 0.0
    for instance in range(len(length)):
        kind = fleet[instance, KIND]
        before, loaded = -1, fleet[instance, LOADED]
        for place in range(length[instance]):
            group = queue[instance, place]
            clock_s, var = state[instance, place, CLOCK], state[instance, place, CLOCK_VAR]
            speed_sum = state[instance, place, SPEED_SUM]
            model = traits[group, MODEL]
            if model != loaded:
                tier = sleeping_tier(data, queues, instance, place, model)
                swap_s, swap_var, swap_sd = swap_time(data, instance, tier, before, loaded, model, speed_sum)
                clock_s += swap_s
                var += swap_var
                speed_sum += swap_sd
                loaded = model
            class_sd, tail_sd = work[kind, group, CLASS_SD], work[kind, group, TAIL_SPEED_SD]
            of_class = state[instance, place, CLASS_SUM] - class_sd
            cross_var = of_class * class_sd + (speed_sum + tail_sd) * work[kind, group, SPEED_SD]
            n, service_s = work[kind, group, REQUESTS], work[kind, group, SERVICE]
            first_s = clock_s + work[kind, group, TAIL]
            completion += COMPLETION_WEIGHT * n * (first_s + 0.5 * service_s * (1.0 + 1.0 / n))
            late_s = first_s - work[kind, group, DEADLINE]
            if late_s > -1e15 and state[instance, place, COST] > 0.0:
                var += 2.0 * speed_sum * tail_sd
                penalty_s = summed_penalty(
                    n, late_s, var, service_s,
                    work[kind, group, SERVICE_VAR], work[kind, group, TAIL_VAR], prices[MISS_WEIGHT],
                    2.0 * cross_var,
                )  # fmt: skip
                penalty += penalty_s
                allowed = work[kind, group, ALLOWED]
                if prices[PROMISE] > 0.0 and allowed < n:
                    whole_s = summed_penalty(
                        n, late_s, var, service_s,
                        work[kind, group, SERVICE_VAR], work[kind, group, TAIL_VAR],
                        prices[MISS_WEIGHT] + prices[PROMISE], 2.0 * cross_var,
                    )  # fmt: skip
                    promises += max(0.0, whole_s - prices[PROMISE] * allowed - penalty_s)
            if traits[group, HOME] >= 0 and traits[group, HOME] != instance:
                penalty += prices[MOVE]
            before = group
    return penalty, completion, promises
