"""Search for a placement: local search from a start, with moves, copies and exchanges of models."""

from collections.abc import Callable, Iterator
from typing import Final

from qlm.domain.ids import ModelId
from qlm.planner.placement.problem import Placement, PlacementProblem

IMPROVED_SHARE: Final = 1e-3
"""Least improvement of a step, as a share."""

STEPS_MAX: Final = 200
"""Most steps of a search."""

Cost = Callable[[Placement], float]
"""What is minimised."""


def present_placement(problem: PlacementProblem) -> Placement:
    """Return a first placement: awake models where they are, all others where there is most room."""
    homes: list[set[ModelId]] = [set() for _ in problem.instances]
    loads = [0.0] * len(problem.instances)

    def put(model: ModelId, at: int) -> None:
        demand, kind = problem.demands[model], problem.instances[at].kind
        homes[at].add(model)
        loads[at] += demand.rate_rps * demand.kinds[kind].service_s

    placed = set()
    for at, instance in enumerate(problem.instances):
        awake = instance.loaded
        if awake is not None and awake in problem.demands and at in problem.able(awake):
            put(awake, at)
            placed.add(awake)
    rest = [model for model in problem.demands if model not in placed and problem.able(model)]
    for model in sorted(rest, key=lambda model: (-problem.demands[model].rate_rps, model)):
        able = problem.able(model)
        asleep = [at for at in able if model in problem.instances[at].asleep]
        put(model, min(asleep or able, key=lambda at: (loads[at], len(homes[at]), at)))
    return tuple(frozenset(models) for models in homes)


def improve(problem: PlacementProblem, start: Placement, cost: Cost) -> Placement:
    """Take the best neighbour again and again until none is better."""
    best, best_cost = start, cost(start)
    for _ in range(STEPS_MAX):
        step = min(((cost(each), each) for each in neighbours(problem, best)), default=None, key=_first)
        if step is None or step[0] >= best_cost - IMPROVED_SHARE * abs(best_cost):
            break
        best_cost, best = step
    return best


def _first(pair: tuple[float, Placement]) -> float:
    return pair[0]


def neighbours(problem: PlacementProblem, placement: Placement) -> Iterator[Placement]:
    """Yield the placements that differ by one model moved, copied or dropped, or by two exchanged.

    Where all other models have further homes, a model also takes their place.
    """
    homes = {
        model: [at for at, models in enumerate(placement) if model in models] for model in problem.demands
    }
    for model, of in homes.items():
        able = problem.able(model)
        for to in able:
            if to in of:
                if len(of) > 1:
                    yield _with(placement, {to: placement[to] - {model}})
                continue
            yield _with(placement, {to: placement[to] | {model}})
            takes_over = placement[to] and all(len(homes[other]) > 1 for other in placement[to])
            if takes_over:
                yield _with(placement, {to: frozenset((model,))})
            for at in of:
                if takes_over:
                    yield _with(placement, {at: placement[at] - {model}, to: frozenset((model,))})
                moved = {at: placement[at] - {model}, to: placement[to] | {model}}
                yield _with(placement, moved)
                for other in placement[to] - {model}:
                    if at in problem.able(other) and other not in placement[at]:
                        exchanged = {
                            at: (placement[at] - {model}) | {other},
                            to: (placement[to] - {other}) | {model},
                        }
                        yield _with(placement, exchanged)


def _with(placement: Placement, changed: dict[int, frozenset[ModelId]]) -> Placement:
    return tuple(changed.get(at, models) for at, models in enumerate(placement))
