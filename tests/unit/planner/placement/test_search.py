"""The search for a placement ends in time, however many models there are."""

from qlm.domain.ids import InstanceId, ModelId
from qlm.planner.placement.problem import (
    ModelDemand,
    ModelOnKind,
    PlacedInstance,
    Placement,
    PlacementProblem,
)
from qlm.planner.placement.score import Losses
from qlm.planner.placement.search import EVALUATIONS_MAX, improve, present_placement

ON_KIND = ModelOnKind(
    service_s=0.1, answer_s=10.0, recompute_s=0.05, warm_s=1.5, reload_s=5.0, cold_s=40.0, weights_bytes=1
)


def with_models(count: int, instances: int) -> PlacementProblem:
    """Return a problem with one popular model, and many that are seldom asked for."""
    models = [ModelId(f"m{at:02}") for at in range(count)]
    rates_rps = {model: 20.0 if at == 0 else 0.02 + 0.001 * at for at, model in enumerate(models)}
    return PlacementProblem(
        demands={
            model: ModelDemand(objectives=((30.0, rate_rps),), kinds={"x": ON_KIND})
            for model, rate_rps in rates_rps.items()
        },
        instances=tuple(
            PlacedInstance(id=InstanceId(f"i{at}"), kind="x", models=frozenset(models), host_memory_bytes=100)
            for at in range(instances)
        ),
    )


def test_with_many_models_a_search_improves_much_and_looks_at_a_bounded_number_of_placements() -> None:
    problem = with_models(60, 6)
    losses, looked_at = Losses(problem), 0

    def cost(placement: Placement) -> float:
        nonlocal looked_at
        looked_at += 1
        return losses.lost_rps(placement)

    start = present_placement(problem)
    found = improve(problem, start, cost)
    assert looked_at <= EVALUATIONS_MAX + 1
    assert losses.lost_rps(found) < 0.5 * losses.lost_rps(start)
    assert frozenset().union(*found) == problem.demands.keys(), "each model has a home"


def test_with_few_models_each_step_is_to_the_best_neighbour() -> None:
    problem = with_models(4, 2)
    losses = Losses(problem)
    found = improve(problem, present_placement(problem), losses.lost_rps)
    alone = next(models for models in found if ModelId("m00") in models)
    assert alone == {"m00"}, "the popular model has an instance of its own"
