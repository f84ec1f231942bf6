"""Planning problems whose groups share errors, and the best of all their plans by the referee."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations, product

from qlm.domain.ids import GroupId
from qlm.planner.exact.objective import sample_average
from qlm.planner.exact.scenarios import Scenarios
from qlm.planner.problem import GroupTime, Plan, PlannedGroup, Problem
from qlm.planner.verify.problem_index import ProblemIndex
from qlm.planner.verify.referee import verify


def sharing(problem: Problem, seed: int, *, classes: int = 2, sd: float = 0.3) -> Problem:
    """Let groups share errors of up to `sd` of their times: some by class, some of speed, some by none."""
    rng = random.Random(seed)
    names = [None, *(f"class-{at}" for at in range(classes))]
    groups = []
    for group in problem.groups:
        of_class, of_speed = rng.choice([0.0, sd * rng.random()]), rng.choice([0.0, sd * rng.random()])
        time = {kind: _shared(each, of_class, of_speed) for kind, each in group.time.items()}
        groups.append(replace(group, time=time, cls=rng.choice(names)))
    return replace(problem, groups=tuple(groups))


def _shared(time: GroupTime, of_class: float, of_speed: float) -> GroupTime:
    return replace(
        time,
        class_sd_s=of_class * time.service.mean,
        speed_sd_s=of_speed * time.service.mean,
        tail_speed_sd_s=of_speed * time.tail.mean,
    )


def least_penalty_s(problem: Problem, price: Callable[[Plan], float] | None = None) -> float:
    """Price every assignment and order that keeps priorities, queue by queue; by the referee unless told."""
    index = ProblemIndex.of(problem)
    able = [group for group in problem.groups if index.placeable(group)]
    known: dict[tuple[str, frozenset[GroupId]], float] = {}

    def of_queue(id: str, groups: tuple[PlannedGroup, ...]) -> float:
        key = (id, frozenset(group.id for group in groups))
        if key not in known:
            known[key] = min(_price(problem, id, order, price) for order in _orders(groups))
        return known[key]

    runs = [[i.id for i in problem.instances if index.runs(i, group)] for group in able]
    return min(
        sum(of_queue(i.id, _at(able, places, i.id)) for i in problem.instances) for places in product(*runs)
    )


def _at(groups: list[PlannedGroup], places: tuple[str, ...], id: str) -> tuple[PlannedGroup, ...]:
    return tuple(group for group, at in zip(groups, places, strict=True) if at == id)


def _orders(groups: tuple[PlannedGroup, ...]) -> Iterator[tuple[PlannedGroup, ...]]:
    for order in permutations(groups):
        numbers = [group.priority for group in order]
        if numbers == sorted(numbers):
            yield order


def _price(
    problem: Problem, id: str, order: tuple[PlannedGroup, ...], price: Callable[[Plan], float] | None
) -> float:
    queues = {i.id: tuple(g.id for g in order) if i.id == id else () for i in problem.instances}
    plan = Plan(queues=queues)
    return verify(problem, plan).penalty_s if price is None else price(plan)


def least_average_s(problem: Problem, drawn: Scenarios) -> float:
    """Return the least mean penalty over scenarios, of every assignment and order."""
    return least_penalty_s(problem, lambda plan: sample_average(problem, plan, drawn))
