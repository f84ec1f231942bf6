"""Times and shared errors along the queues of the fast planner."""

from qlm.planner.compiling.compiled import compiled
from qlm.planner.fast.data import (
    BEGIN,
    CLASS,
    CLASS_SUM,
    INSTANCE,
    KIND,
    LEAVE,
    TAIL,
    TAIL_SPEED_SD,
    TAIL_VAR,
    Candidates,
    Data,
    Queues,
)
from qlm.planner.swapping.compiled import tier_of


@compiled(inline="always")
def tier_if_fits(data: Data, instance: int, asleep: int, model: int) -> int:
    """Return the tier of a model that is not awake, where all models fit into host memory.

    Args:
        data: The problem.
        instance: The instance.
        asleep: As in `Queues.memory_at`.
        model: The model.
    """
    if (-asleep >> model) & 1:
        return int(data.later_tier[data.fleet[instance, KIND], model])
    return int(data.first_tier[instance, model])


@compiled(inline="always")
def sleeping_tier(data: Data, queues: Queues, instance: int, place: int, model: int) -> int:
    """Return the tier of a model that is not awake before a place of a queue."""
    asleep = queues.memory_at[instance, place]
    if data.fits[data.fleet[instance, KIND]]:
        return tier_if_fits(data, instance, asleep, model)
    return tier_of(queues.memory, instance, asleep, model)


@compiled(inline="always")
def swap_time(
    data: Data, instance: int, tier: int, before: int, loaded: int, model: int, speed_sum: float
) -> tuple[float, float, float]:
    """Return the time before a group of another model can start.

    Its mean, by how much it adds to the variance of the clock, and to the standard deviation by the speed.

    Args:
        data: The problem.
        instance: The instance.
        tier: Tier in which the model sleeps.
        before: The preceding group, whose tail must end first; -1 for none.
        loaded: The model loaded; -1 for none.
        model: The model to load.
        speed_sum: Standard deviation of the clock before it by the error of the speed.
    """
    kind = data.fleet[instance, KIND]
    swap_s = data.memory.takes_s[kind, model, tier]
    var = speed_sd = 0.0
    if before >= 0:
        speed_sd = data.work[kind, before, TAIL_SPEED_SD]
        swap_s += data.work[kind, before, TAIL]
        var = data.work[kind, before, TAIL_VAR] + 2.0 * speed_sum * speed_sd
    else:
        swap_s += data.busy[instance, LEAVE]
    if loaded >= 0:
        swap_s += data.unload[kind, loaded]
    return swap_s, var, speed_sd


@compiled(inline="always")
def class_sum(data: Data, queues: Queues, candidates: Candidates, side: int, place: int, cls: int) -> float:
    """Return the standard deviation of the clock before a place of a candidate by the error of a class.

    The last group of the class before has it; classes stand together, so that is near as a rule.
    """
    begin, instance = candidates.span[side, BEGIN], candidates.span[side, INSTANCE]
    for at in range(place - 1, begin - 1, -1):
        if data.traits[candidates.groups[side, at], CLASS] == cls:
            return float(candidates.state[side, at, CLASS_SUM])
    for at in range(begin - 1, -1, -1):
        if data.traits[queues.queue[instance, at], CLASS] == cls:
            return float(queues.state[instance, at, CLASS_SUM])
    return 0.0
