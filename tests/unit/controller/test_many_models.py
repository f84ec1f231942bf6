"""Any number of models may wait: through a decision of the controller, and through a simulation."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from qlm.controller.core.decide import ControllerSettings, decide
from qlm.controller.core.fleet import Fleet
from qlm.domain.fleet import EngineState, ModelSpec
from qlm.domain.group import RequestClass
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.domain.view import ClusterView
from qlm.planner.policy.replanning import Replanner
from qlm.planner.problem import Kind, ModelCost
from qlm.simulator.scenario import SimulatedInstance, Workload
from qlm.simulator.seeds import Seeds
from support import simulation
from support.estimating import COST, KIND, NOW_NS, class_view, counted, instance, steady_profile


def names(count: int) -> tuple[ModelId, ...]:
    return tuple(ModelId(f"m{number:03d}") for number in range(count))


def view_of(models: tuple[ModelId, ...]) -> ClusterView:
    """Two instances that serve all models, and five requests for each."""
    lengths = counted(np.full((50, 1), 20.0))
    classes = (RequestClass(model, "deadline-16s", target_ms=20_000.0) for model in models)
    fleet = tuple(
        replace(
            instance(name), models=models, active_model=models[0], engines=((models[0], EngineState.AWAKE),)
        )
        for name in ("gpu-0", "gpu-1")
    )
    return ClusterView(
        classes=tuple(
            replace(class_view(cls, lengths, ungrouped=5), ungrouped_arrival_ns=NOW_NS) for cls in classes
        ),
        instances=fleet,
        queues=(),
    )


@pytest.mark.parametrize("count", [64, 100, 300])
def test_a_decision_places_what_waits_for_any_number_of_models(count: int) -> None:
    models, numbers = names(count), itertools.count()
    profile = steady_profile(16)
    decision = decide(
        view_of(models),
        now_ns=NOW_NS,
        fleet=Fleet(
            kinds={KIND: Kind(host_memory_bytes=10, models=dict.fromkeys(models, COST))},
            profiles={(model, KIND): profile for model in models},
        ),
        settings=ControllerSettings(),
        planner=Replanner(seed=1),
        new_id=lambda cls: GroupId(f"g{next(numbers)}"),
    )
    assert decision.failures == ()
    assert decision.plan.method == "fast"
    placed = {group for queue in decision.plan.queues.values() for group in queue}
    assert {group.model for group in decision.problem.groups if group.id in placed} == set(models)


@pytest.mark.parametrize("count", [64, 100, 300])
def test_a_simulation_plans_for_any_number_of_models(count: int) -> None:
    models = names(count)
    profile = replace(
        simulation.profiles()[(simulation.SMALL, "A100")],
        swap_cold_s=0.4,
        swap_warm_s=0.2,
        swap_reload_s=0.3,
        unload_s=0.1,
    )
    cost = ModelCost(weights_bytes=profile.weights_bytes, swap_warm_s=0.2, swap_cold_s=0.4, swap_reload_s=0.3)

    def workload(seeds: Seeds) -> Workload:
        few = np.zeros(count, dtype=np.int64)
        return Workload(
            arrival_ns=np.arange(1, count + 1, dtype=np.int64) * 1_000_000,
            model=np.arange(count, dtype=np.int64),
            tenant=few,
            slo_class=few,
            prompt_tokens=few + 20,
            output_tokens=few + 5,
            max_tokens=few + 5,
        )

    subject = replace(
        simulation.scenario(workload, horizon_s=4.0),
        models=tuple(ModelSpec(id=model, tokenizer="byte", context_tokens=8192) for model in models),
        instances=tuple(
            SimulatedInstance(id=InstanceId(f"i{number}"), kind="A100", models=models) for number in range(2)
        ),
        fleet=Fleet(
            kinds={"A100": Kind(host_memory_bytes=64 * 10**9, models=dict.fromkeys(models, cost))},
            profiles={(model, "A100"): profile for model in models},
        ),
    )
    result = simulation.run(subject, policy="qlm")
    assert result.planner_failures == 0
    assert len(result.plan_s) > 5
    assert np.count_nonzero(result.outcomes.ended_ns >= 0) >= 4
