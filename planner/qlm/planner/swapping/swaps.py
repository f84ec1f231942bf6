"""Model swaps on one kind of instance: their times, by what sleeps in host memory at that moment."""

from collections.abc import Mapping

from qlm.domain.ids import ModelId
from qlm.domain.operations import SwapTier
from qlm.planner.problem import Instance, Kind, ModelCost
from qlm.rct_estimator.host_memory import Asleep, SwapCost, after_swap


class Swaps:
    """Swaps on instances of one kind, by the agents' rule of host memory.

    Agents also keep what the rest of their queue needs. A plan does not: what is asleep at a place would then
    depend on all groups behind it. So in plans the least recently used model is evicted first.
    """

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._costs = _Costs(kind.models)
        self._by_tier: dict[ModelId, Mapping[SwapTier, float]] = {}
        self._known: dict[tuple[Asleep, ModelId | None, ModelId], Asleep] = {}

    def at_first(self, instance: Instance) -> Asleep:
        """Return what sleeps on an instance now, without models that it cannot serve."""
        unloaded = frozenset(instance.unloaded_models)
        return tuple(
            (model, SwapTier.RELOAD if model in unloaded else SwapTier.WARM)
            for model in instance.warm_models
            if model != instance.loaded_model and model in self._kind.models
        )

    def after(self, asleep: Asleep, old: ModelId | None, new: ModelId) -> Asleep:
        """Return what sleeps after a swap; equal swaps are computed once."""
        old = old if old in self._kind.models else None
        key = asleep, old, new
        if key not in self._known:
            self._known[key] = after_swap(asleep, old, new, self._costs, self._kind.host_memory_bytes)
        return self._known[key]

    def takes_s(self, asleep: Asleep, old: ModelId | None, new: ModelId) -> float:
        """Return the seconds of a swap, unloading included."""
        left = self._costs[old] if old in self._kind.models else None
        return self._costs[new].swap_s(tier_of(asleep, new), left)

    def by_tier_s(self, model: ModelId) -> Mapping[SwapTier, float]:
        """Return the seconds until a model serves, without unloading another, by its tier."""
        if model not in self._by_tier:
            self._by_tier[model] = {tier: self._costs[model].takes_s(tier) for tier in SwapTier}
        return self._by_tier[model]


def tier_of(asleep: Asleep, model: ModelId) -> SwapTier:
    """Return the tier of a model that is not awake."""
    for each, tier in asleep:
        if each == model:
            return tier
    return SwapTier.COLD


def swap_cost(cost: ModelCost) -> SwapCost:
    """Return the cost of a model in the form of the rule of host memory."""
    return SwapCost(
        weights_bytes=cost.weights_bytes,
        process_bytes=cost.process_bytes,
        warm_s=cost.swap_warm_s,
        reload_s=cost.swap_cold_s if cost.swap_reload_s is None else cost.swap_reload_s,
        cold_s=cost.swap_cold_s,
        unload_s=cost.unload_s,
    )


class _Costs(dict[ModelId, SwapCost]):
    """Costs of the models that were asked for."""

    def __init__(self, models: Mapping[ModelId, ModelCost]) -> None:
        super().__init__()
        self._models = models

    def __missing__(self, model: ModelId) -> SwapCost:
        cost = self[model] = swap_cost(self._models[model])
        return cost
