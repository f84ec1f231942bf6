"""Small planning problems, and a slow reference of what a plan costs."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace

from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.limits import ON_TIME_S
from qlm.planner.problem import (
    GroupTime,
    Instance,
    Kind,
    ModelCost,
    Plan,
    PlannedGroup,
    Problem,
)
from qlm.rct_estimator.normal import Normal
from support.sleepers import first_asleep, swap

COSTS = {
    "fast": ModelCost(
        weights_bytes=10, process_bytes=4, swap_warm_s=2.0, swap_reload_s=9.0, swap_cold_s=40.0, unload_s=1.0
    ),
    "slow": ModelCost(
        weights_bytes=10, process_bytes=4, swap_warm_s=3.0, swap_reload_s=15.0, swap_cold_s=60.0, unload_s=1.5
    ),
}


def random_problem(
    seed: int,
    *,
    groups: int = 6,
    instances: int = 2,
    models: int = 3,
    load: float = 1.0,
    priorities: int = 1,
    certain: bool = False,
    memory_bytes: int = 64,
    leave_s: float = 0.0,
) -> Problem:
    """Draw a problem with two kinds; the last model runs on the faster one only.

    Args:
        seed: Of all that is drawn.
        groups: How many.
        instances: How many, of both kinds by turns.
        models: How many.
        load: Factor on all service times; deadlines stay.
        priorities: Groups have one of so many.
        certain: No variances.
        memory_bytes: Host memory; a sleeping model takes 14, without weights 4.
        leave_s: What a swap at the head of a queue discards.
    """
    rng = random.Random(seed)
    names = [ModelId(f"m{at}") for at in range(models)]
    runs = {"fast": names, "slow": names[: max(1, models - 1)]}
    kinds = {
        kind: Kind(host_memory_bytes=memory_bytes, models={name: COSTS[kind] for name in runs[kind]})
        for kind in runs
    }
    planned = tuple(_group(rng, at, names, load, priorities, certain) for at in range(groups))
    fleet = [_instance(rng, at, names, certain) for at in range(instances)]
    fleet = [replace(each, leave_s=leave_s) for each in fleet]
    for group in planned:
        if rng.random() < 0.5 and fleet:
            at = rng.randrange(len(fleet))
            fleet[at] = replace(fleet[at], queue=(*fleet[at].queue, group.id))
    return Problem(now_s=1000.0, kinds=kinds, instances=tuple(fleet), groups=planned, move_s=5.0)


def _group(
    rng: random.Random, at: int, names: Sequence[ModelId], load: float, priorities: int, certain: bool
) -> PlannedGroup:
    requests, service_s = rng.randint(1, 40), load * rng.uniform(5, 60)
    spread = 0.0 if certain else rng.choice([0.0, 0.1, 0.5])
    time = {
        kind: GroupTime(
            service=Normal(factor * service_s, (spread * factor * service_s) ** 2),
            tail=Normal(factor * 4.0, (spread * 4.0) ** 2),
        )
        for kind, factor in (("fast", 1.0), ("slow", 2.5))
    }
    return PlannedGroup(
        id=GroupId(f"g{at}"),
        model=rng.choice(names),
        requests=requests,
        deadline_s=None if rng.random() < 0.1 else 1000.0 + rng.uniform(-20, 300),
        priority=rng.randrange(priorities),
        time=time,
    )


def _instance(rng: random.Random, at: int, names: Sequence[ModelId], certain: bool) -> Instance:
    return Instance(
        id=InstanceId(f"i{at}"),
        kind="slow" if at % 2 else "fast",
        loaded_model=rng.choice([None, *names]),
        warm_models=tuple(name for name in names if rng.random() < 0.3),
        busy=Normal(rng.uniform(0, 20), 0.0 if certain else rng.choice([0.0, 9.0])),
    )


def random_plan(problem: Problem, seed: int) -> Plan:
    """Place each group somewhere it runs, in order of priority and else by chance."""
    rng = random.Random(seed)
    queues: dict[InstanceId, list[PlannedGroup]] = {instance.id: [] for instance in problem.instances}
    unplaceable = []
    for group in problem.groups:
        fits = [
            each.id
            for each in problem.instances
            if group.model in problem.kinds[each.kind].models and each.kind in group.time
        ]
        if fits:
            queues[rng.choice(fits)].append(group)
        else:
            unplaceable.append(group.id)
    for queue in queues.values():
        rng.shuffle(queue)
        queue.sort(key=lambda group: group.priority)
    return Plan(
        queues={id: tuple(group.id for group in queue) for id, queue in queues.items()},
        unplaceable=tuple(unplaceable),
        method="by chance",
    )


def slow_penalty(problem: Problem, plan: Plan) -> tuple[float, float]:
    """Penalty and expected met requests of a plan, request by request from the definition."""
    groups = {group.id: group for group in problem.groups}
    penalty_s = met = 0.0
    for instance in problem.instances:
        kind = problem.kinds[instance.kind]
        start, tail, loaded = instance.busy, Normal(instance.leave_s), instance.loaded_model
        asleep = first_asleep(instance, kind)
        for name in plan.queues.get(instance.id, ()):
            group = groups[name]
            if group.model != loaded:
                swap_s, asleep = swap(kind, asleep, loaded, group.model)
                start = start + tail + Normal(swap_s)
                loaded = group.model
            time = group.time[instance.kind]
            for r in range(1, group.requests + 1):
                done = start + time.service.scaled(r / group.requests) + time.tail
                if group.deadline_s is not None:
                    late_s, late = one_lateness(done, group.deadline_s - problem.now_s)
                    penalty_s += late_s + problem.miss_weight_s * late
                    met += 1 - late
            start, tail = start + time.service, time.tail
            homes = [each.id for each in problem.instances if name in each.queue]
            if homes and homes != [instance.id]:
                penalty_s += problem.move_s
    return penalty_s, met


def one_lateness(done: Normal, deadline_s: float) -> tuple[float, float]:
    """E[max(0, X)] and P(X > 0) of one request, X = done - deadline; a certain one is late by `ON_TIME_S`."""
    x = done.mean - deadline_s
    if done.var == 0:
        return (x, 1.0) if x > ON_TIME_S else (0.0, 0.0)
    sd = math.sqrt(done.var)
    if abs(x) > 1000 * sd:
        return max(0.0, x), float(x > 0)
    p = 0.5 * math.erfc(-x / sd / math.sqrt(2))
    return x * p + sd * math.exp(-0.5 * (x / sd) ** 2) / math.sqrt(2 * math.pi), p
