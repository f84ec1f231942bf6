"""Search for a placement: local search from a start, with moves, copies and exchanges of models."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from qlm.domain.ids import ModelId
from qlm.planner.placement.problem import Placement, PlacementProblem

IMPROVED_SHARE: Final = 1e-3
"""Least improvement of a step, as a share."""

STEPS_MAX: Final = 200
"""Most steps of a search."""

MANY_MODELS: Final = 20
"""Models up to which each step is to the best neighbour."""

LOOKED_AT: Final = 200
"""Neighbours after which a step with more models takes the best so far, if there is a better one. With 53
models on 8 instances, steps to the best of some 2 500 took 20 s, for 5 % less."""

EVALUATIONS_MAX: Final = 10_000
"""Most placements that a search looks at: two to three seconds with 70 models on 8 instances."""

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
    """Take a better neighbour again and again until none is better, or the evaluations are used up."""
    best, best_cost, left = start, cost(start), EVALUATIONS_MAX
    enough = LOOKED_AT if len(problem.demands) > MANY_MODELS else EVALUATIONS_MAX
    for _ in range(STEPS_MAX):
        least = best_cost - IMPROVED_SHARE * abs(best_cost)
        step, looked_at = _step(islice(neighbours(problem, best), left), cost, least, enough)
        if step is None:
            break
        best_cost, best = step
        left -= looked_at
    return best


def _step(
    candidates: Iterable[Placement], cost: Cost, least: float, enough: int
) -> tuple[tuple[float, Placement] | None, int]:
    """Return the best of the first candidates with its cost, if it costs less, and how many were looked at.

    These are `enough`, or those up to the first that costs less.
    """
    step, looked_at = None, 0
    for looked_at, each in enumerate(candidates, 1):
        costs = cost(each)
        if costs < least:
            step, least = (costs, each), costs
        if step is not None and looked_at >= enough:
            break
    return step, looked_at


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
