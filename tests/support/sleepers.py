"""What sleeps on an instance while a queue is walked through, straight from the agents' rule."""

from collections.abc import Mapping

from qlm.domain.ids import ModelId
from qlm.domain.operations import SwapTier
from qlm.planner.problem import Instance, Kind, ModelCost
from qlm.planner.swapping.swaps import swap_cost
from qlm.rct_estimator.host_memory import Asleep, HostMemoryUse, SwapCost, asleep_after, plan_sleep


def first_asleep(instance: Instance, kind: Kind) -> Asleep:
    """Return what sleeps now."""
    return {
        model: SwapTier.RELOAD if model in instance.unloaded_models else SwapTier.WARM
        for model in instance.warm_models
        if model in kind.models and model != instance.loaded_model
    }


def swap(kind: Kind, asleep: Asleep, old: ModelId | None, new: ModelId) -> tuple[float, Asleep]:
    """Return the seconds of a swap, unloading included, and what sleeps behind it."""
    models = kind.models
    unload_s = models[old].unload_s if old in models else 0.0
    load_s = swap_cost(models[new]).takes_s(asleep.get(new, SwapTier.COLD))
    if old not in models:
        return unload_s + load_s, asleep_after(asleep, None, new)
    use = HostMemoryUse(asleep=asleep)
    plan = plan_sleep(old, use, _costs(models), kind.host_memory_bytes, later=(new,))
    return unload_s + load_s, asleep_after(asleep, (old, plan), new)


def _costs(models: Mapping[ModelId, ModelCost]) -> dict[ModelId, SwapCost]:
    return {model: swap_cost(cost) for model, cost in models.items()}
