"""Random planning problems, and what the exact solver is compared with: all assignments and orders."""

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.exact.scenarios import Scenarios
from qlm.planner.problem import GroupTime, Instance, Kind, ModelCost, PlannedGroup, Problem
from qlm.rct_estimator.host_memory import Asleep
from qlm.rct_estimator.normal import Normal
from support.sleepers import first_asleep, swap

NOW_S = 1000.0

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Parameters of random problems.

    Attributes:
        groups, instances, models: How many.
        load: Mean work over what the fleet does until the last deadline, roughly; above 1 is overload.
        spread: Standard deviation of times over their mean; 0 for certain times.
        requests_max: Requests of a group, at most.
        memory_bytes: Host memory; a sleeping model takes 2, without weights 1.
        leave_s: What a swap at the head of a queue discards, at most.
        odd: Share of what makes problems awkward: priorities, moves, groups without a deadline, equal groups,
            kinds that lack a model, groups that run nowhere.
    """

    groups: int
    instances: int
    models: int
    load: float = 1.0
    spread: float = 0.3
    requests_max: int = 6
    odd: float = 0.5
    memory_bytes: int = 100
    leave_s: float = 0.0


def random_problem(shape: Shape, rng: random.Random) -> Problem:
    """One problem of a shape."""
    models = [ModelId(f"m{m}") for m in range(shape.models)]
    kinds = {name: _kind(models, shape, rng) for name in ("large", "small")}
    instances = [
        _instance(f"i{i}", rng.choice(sorted(kinds)), models, shape, rng) for i in range(shape.instances)
    ]
    groups = [_group(f"g{g}", models, shape, rng) for g in range(shape.groups)]
    if rng.random() < shape.odd and shape.groups > 1:
        twin = rng.randrange(1, shape.groups)
        groups[twin] = replace(groups[0], id=groups[twin].id)
    moves = rng.random() < shape.odd
    if moves:
        instances = _queued(instances, groups, rng)
    groups, instances = rng.sample(groups, len(groups)), rng.sample(instances, len(instances))
    return Problem(
        now_s=NOW_S,
        kinds=kinds,
        instances=tuple(instances),
        groups=tuple(groups),
        miss_weight_s=rng.choice([0.0, 30.0, 600.0]),
        move_s=rng.uniform(5, 50) if moves else 0.0,
    )


def _kind(models: list[ModelId], shape: Shape, rng: random.Random) -> Kind:
    kept = [m for m in models if rng.random() > 0.3 * shape.odd] or models
    return Kind(
        host_memory_bytes=shape.memory_bytes,
        models={
            m: ModelCost(
                weights_bytes=1,
                process_bytes=1,
                swap_warm_s=(warm_s := rng.uniform(1, 5)),
                swap_cold_s=(cold_s := rng.uniform(5, 40)),
                unload_s=rng.uniform(0, 2),
                swap_reload_s=(warm_s + cold_s) / 2 if shape.memory_bytes < 100 else None,
            )
            for m in kept
        },
    )


def _instance(name: str, kind: str, models: list[ModelId], shape: Shape, rng: random.Random) -> Instance:
    busy_s = rng.choice([0.0, rng.uniform(0, 20)])
    return Instance(
        id=InstanceId(name),
        kind=kind,
        loaded_model=rng.choice([None, *models, *models]),
        warm_models=tuple(m for m in models if rng.random() < 0.3),
        busy=Normal(busy_s, (shape.spread * busy_s) ** 2),
        leave_s=busy_s / 20.0 * shape.leave_s,
    )


def _group(name: str, models: list[ModelId], shape: Shape, rng: random.Random) -> PlannedGroup:
    service_s, tail_s = rng.uniform(5, 60), rng.uniform(1, 15)
    horizon_s = 40.0 * shape.groups / shape.instances / shape.load
    kinds = {"large": 1.0, "small": rng.uniform(1.2, 2.5)}
    if rng.random() < 0.15 * shape.odd:
        del kinds[rng.choice(["large", "small"])]
    return PlannedGroup(
        id=GroupId(name),
        model=rng.choice(models),
        requests=rng.randint(1, shape.requests_max),
        deadline_s=None if rng.random() < 0.15 * shape.odd else NOW_S + rng.uniform(0.1, 1.0) * horizon_s,
        priority=rng.choice([0, 0, 0, 1]) if rng.random() < shape.odd else 0,
        time={
            kind: GroupTime(
                service=_normal(service_s * slow, shape.spread), tail=_normal(tail_s * slow, shape.spread)
            )
            for kind, slow in kinds.items()
        },
    )


def _normal(mean: float, spread: float) -> Normal:
    return Normal(mean, (spread * mean) ** 2)


def _queued(instances: list[Instance], groups: list[PlannedGroup], rng: random.Random) -> list[Instance]:
    queues: dict[str, list[GroupId]] = {i.id: [] for i in instances}
    for group in groups:
        if rng.random() < 0.7:
            queues[rng.choice(instances).id].append(group.id)
    return [replace(i, queue=tuple(queues[i.id])) for i in instances]


def best_value(problem: Problem, scenarios: Scenarios | None, *, paper: bool = False) -> float:
    """Least value of all assignments and orders, by enumeration; None for the expectation of normal times.

    Each instance's orders are enumerated once, and all assignments then take their cheapest order.
    """
    groups = sorted(
        (g for g in problem.groups if any(_runs(problem, i, g) for i in problem.instances)),
        key=lambda g: g.id,
    )
    world = _Moments(problem, paper) if scenarios is None else _Sample(problem, paper, scenarios)
    tables = [_cheapest_orders(problem, i, groups, world) for i in problem.instances]
    best = math.inf if groups else 0.0
    for assignment in itertools.product(range(len(tables)), repeat=len(groups)):
        sets = [frozenset(g for g, at in enumerate(assignment) if at == i) for i in range(len(tables))]
        best = min(best, sum(table.get(s, math.inf) for table, s in zip(tables, sets, strict=True)))
    return best


def _runs(problem: Problem, instance: Instance, group: PlannedGroup) -> bool:
    return instance.kind in group.time and group.model in problem.kinds[instance.kind].models


def _cheapest_orders(
    problem: Problem, instance: Instance, groups: list[PlannedGroup], world: "_Sample | _Moments"
) -> dict[frozenset[int], float]:
    able = [g for g, group in enumerate(groups) if _runs(problem, instance, group)]
    cheapest: dict[frozenset[int], float] = {}
    for order, cost in _orders(problem, instance, groups, able, world):
        key = frozenset(order)
        cheapest[key] = min(cost, cheapest.get(key, math.inf))
    return cheapest


def _orders(
    problem: Problem,
    instance: Instance,
    groups: list[PlannedGroup],
    able: list[int],
    world: "_Sample | _Moments",
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every order of every set of groups on one instance, with its cost."""
    homes = {g: i.id for i in problem.instances for g in i.queue}
    kind, busy = problem.kinds[instance.kind], world.busy(instance)
    Step = tuple[tuple[int, ...], float, Floats, Floats, ModelId | None, Asleep]
    leaves = world.later(np.zeros_like(busy), instance.leave_s)
    stack: list[Step] = [((), 0.0, busy, leaves, instance.loaded_model, first_asleep(instance, kind))]
    while stack:
        order, cost, clock, tail, loaded, asleep = stack.pop()
        yield order, cost
        for g in able:
            group = groups[g]
            if g in order or (order and groups[order[-1]].priority > group.priority):
                continue
            start, behind = clock, asleep
            if group.model != loaded:
                swap_s, behind = swap(kind, asleep, loaded, group.model)
                start = world.later(clock + tail, swap_s)
            alike = [h.id for h in groups if h.model == group.model and h.time == group.time]
            drawn = alike[sum(1 for h in order if groups[h].id in alike)]
            service, new_tail = world.times(group.time[instance.kind], drawn)
            added = problem.move_s if homes.get(group.id, instance.id) != instance.id else 0.0
            if group.deadline_s is not None:
                added += sum(
                    world.price(start + world.share(r / group.requests, service) + new_tail, group.deadline_s)
                    for r in range(group.requests if world.paper else 1, group.requests + 1)
                )
            after = (group.model, behind)
            stack.append(((*order, g), cost + added, start + service, new_tail, *after))


class _Sample:
    """Times in each scenario; (K,)."""

    def __init__(self, problem: Problem, paper: bool, scenarios: Scenarios) -> None:
        self.problem, self.paper, self.scenarios = problem, paper, scenarios

    def busy(self, instance: Instance) -> Floats:
        return _drawn(instance.busy, self.scenarios.busy)

    def times(self, time: GroupTime, drawn: GroupId) -> tuple[Floats, Floats]:
        service = _drawn(time.service, self.scenarios.service[drawn])
        return service, _drawn(time.tail, self.scenarios.tail[drawn])

    def later(self, clock: Floats, seconds: float) -> Floats:
        return clock + seconds

    def share(self, share: float, service: Floats) -> Floats:
        return share * service

    def price(self, end: Floats, deadline_s: float) -> float:
        late = end - (deadline_s - self.problem.now_s)
        if self.paper:
            return float(np.mean(late))
        return float(np.mean(np.maximum(late, 0.0) + self.problem.miss_weight_s * (late > 0)))


class _Moments:
    """Mean and variance of times; (2,)."""

    def __init__(self, problem: Problem, paper: bool) -> None:
        self.problem, self.paper = problem, paper

    def busy(self, instance: Instance) -> Floats:
        return np.array([instance.busy.mean, instance.busy.var])

    def times(self, time: GroupTime, _: GroupId) -> tuple[Floats, Floats]:
        return np.array([time.service.mean, time.service.var]), np.array([time.tail.mean, time.tail.var])

    def later(self, clock: Floats, seconds: float) -> Floats:
        later: Floats = clock + np.array([seconds, 0.0])
        return later

    def share(self, share: float, service: Floats) -> Floats:
        part: Floats = service * np.array([share, share * share])
        return part

    def price(self, end: Floats, deadline_s: float) -> float:
        late, var = float(end[0]) - (deadline_s - self.problem.now_s), float(end[1])
        if self.paper:
            return late
        if var == 0:
            return max(late, 0.0) + self.problem.miss_weight_s * (late > 0)
        normal = NormalDist(late, math.sqrt(var))
        missed = 1.0 - normal.cdf(0.0)
        return late * missed + var * normal.pdf(0.0) + self.problem.miss_weight_s * missed


def _drawn(time: Normal, deviations: Floats) -> Floats:
    drawn: Floats = time.mean + math.sqrt(time.var) * deviations
    return drawn
