"""Model swaps on one kind of instance: their times, by what sleeps in host memory at that moment."""

from collections.abc import Mapping
from dataclasses import field
from functools import cached_property

from qlm.domain.ids import ModelId
from qlm.domain.operations import SwapTier
from qlm.domain.values import value
from qlm.planner.problem import Instance, Kind, ModelCost
from qlm.rct_estimator.host_memory import (
    Asleep,
    HostMemoryUse,
    SleepPlan,
    SwapCost,
    after_swap,
    asleep_after,
    plan_sleep,
)


@value(kw_only=False)
class Sleeping:
    """What sleeps on an instance at one moment.

    Attributes:
        models: Sleeping models with their tier, least recently used first.
        wakes_s: Seconds until each model of the kind serves, without unloading another.
        known: What sleeps after the swaps from it that were computed, by the models that slept and woke.
    """

    models: Asleep
    wakes_s: dict[ModelId, float] = field(compare=False)
    known: dict[tuple[ModelId | None, ModelId], "Sleeping"] = field(
        default_factory=dict, compare=False, repr=False
    )

    def tier_of(self, model: ModelId) -> SwapTier:
        """Return the tier of a model that is not awake."""
        for each, tier in self.models:
            if each == model:
                return tier
        return SwapTier.COLD


class Swaps:
    """Swaps on instances of one kind, by the agents' rule of host memory.

    Agents also keep what the rest of their queue needs. A plan does not: what is asleep at a place would then
    depend on all groups behind it. So in plans the least recently used model is evicted first.
    """

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._costs = _Costs(kind.models)
        self._cold_s = {model: cost.swap_cold_s for model, cost in kind.models.items()}
        self._plans: dict[ModelId, SleepPlan] = {}
        self._known: dict[tuple[Asleep, ModelId | None, ModelId], Sleeping] = {}

    def at_first(self, instance: Instance) -> Sleeping:
        """Return what sleeps on an instance now, without models that it cannot serve."""
        unloaded = frozenset(instance.unloaded_models)
        return self.sleeping(
            tuple(
                (model, SwapTier.RELOAD if model in unloaded else SwapTier.WARM)
                for model in instance.warm_models
                if model != instance.loaded_model and model in self._kind.models
            )
        )

    def sleeping(self, models: Asleep) -> Sleeping:
        """Return models of the kind with the times until each serves."""
        wakes_s = self._cold_s.copy()
        for model, tier in models:
            wakes_s[model] = self._costs[model].takes_s(tier)
        return Sleeping(models, wakes_s)

    def after(self, sleeping: Sleeping, old: ModelId | None, new: ModelId) -> Sleeping:
        """Return what sleeps after a swap; equal swaps from it are computed once."""
        after = sleeping.known.get((old, new))
        if after is None:
            asleep = old if old in self._kind.models else None
            after = sleeping.known[old, new] = self._swap(sleeping.models, asleep, new)
        return after

    def takes_s(self, sleeping: Sleeping, old: ModelId | None, new: ModelId) -> float:
        """Return the seconds of a swap, unloading included."""
        left = self._costs[old] if old in self._kind.models else None
        return self._costs[new].swap_s(sleeping.tier_of(new), left)

    def _swap(self, asleep: Asleep, old: ModelId | None, new: ModelId) -> Sleeping:
        key = asleep, old, new
        if key not in self._known:
            if old is not None and self._all_fit:
                models = asleep_after(asleep, (old, self._plan_alone(old)), new)
            else:
                models = after_swap(asleep, old, new, self._costs, self._kind.host_memory_bytes)
            self._known[key] = self.sleeping(models)
        return self._known[key]

    def _plan_alone(self, model: ModelId) -> SleepPlan:
        """Plan the sleep of a model where all fit: what sleeps beside it makes no difference."""
        if model not in self._plans:
            alone = HostMemoryUse(asleep={})
            self._plans[model] = plan_sleep(model, alone, self._costs, self._kind.host_memory_bytes)
        return self._plans[model]

    @cached_property
    def _all_fit(self) -> bool:
        """Whether host memory holds all models of the kind together."""
        warm = (swap_cost(cost).holds_bytes(SwapTier.WARM) for cost in self._kind.models.values())
        return sum(warm) <= self._kind.host_memory_bytes


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
