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
    asleep_after,
    plan_sleep,
)


@value(kw_only=False)
class Sleeping:
    """What sleeps on an instance at one moment.

    Attributes:
        models: Sleeping models with their tier, least recently used first.
        wakes_s: Seconds until each model of the kind that is not awake serves, without unloading another. For
            the awake one they are what its own wake took; so most swaps change nothing, and share them.
        known: What sleeps after the swaps from it that were computed, by the models that slept and woke.
    """

    models: Asleep
    wakes_s: Mapping[ModelId, float] = field(compare=False)
    known: dict[tuple[ModelId | None, ModelId], "Sleeping"] = field(
        default_factory=dict, compare=False, repr=False
    )

    def tier_of(self, model: ModelId) -> SwapTier:
        """Return the tier of a model that is not awake."""
        return self.models.get(model, SwapTier.COLD)


class Swaps:
    """Swaps on instances of one kind, by the agents' rule of host memory.

    Agents also keep what the rest of their queue needs. A plan does not: what is asleep at a place would then
    depend on all groups behind it. So in plans the least recently used model is evicted first.
    """

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._costs = _Costs(kind.models)
        self._cold_s = {model: cost.swap_cold_s for model, cost in kind.models.items()}
        self._alone: dict[ModelId, SleepPlan] = {}

    def at_first(self, instance: Instance) -> Sleeping:
        """Return what sleeps on an instance now, without models that it cannot serve."""
        unloaded = frozenset(instance.unloaded_models)
        return self.sleeping(
            {
                model: SwapTier.RELOAD if model in unloaded else SwapTier.WARM
                for model in instance.warm_models
                if model != instance.loaded_model and model in self._kind.models
            }
        )

    def sleeping(self, models: Asleep) -> Sleeping:
        """Return models of the kind with the times until each serves."""
        wakes_s = self._cold_s.copy()
        for model, tier in models.items():
            wakes_s[model] = self._costs[model].takes_s(tier)
        return Sleeping(models, wakes_s)

    def after(self, sleeping: Sleeping, old: ModelId | None, new: ModelId) -> Sleeping:
        """Return what sleeps after a swap; equal swaps from it are computed once."""
        after = sleeping.known.get((old, new))
        if after is None:
            asleep = old if old in self._kind.models else None
            after = sleeping.known[old, new] = self._swap(sleeping, asleep, new)
        return after

    def wake_s(self, sleeping: Sleeping, model: ModelId) -> float:
        """Return the seconds until a model serves that is not awake, without unloading another."""
        return self._costs[model].takes_s(sleeping.tier_of(model))

    def takes_s(self, sleeping: Sleeping, old: ModelId | None, new: ModelId) -> float:
        """Return the seconds of a swap, unloading included."""
        left = self._costs[old] if old in self._kind.models else None
        return self._costs[new].swap_s(sleeping.tier_of(new), left)

    def _swap(self, sleeping: Sleeping, old: ModelId | None, new: ModelId) -> Sleeping:
        if old is None:
            return Sleeping(asleep_after(sleeping.models, None, new), sleeping.wakes_s)
        plan = self._plan_alone(old) if self._all_fit else self._plan(sleeping, old, new)
        models = asleep_after(sleeping.models, (old, plan), new)
        wakes_s, wake_s = sleeping.wakes_s, self._costs[old].takes_s(plan.tier)
        if plan.stop or wakes_s[old] != wake_s:
            wakes_s = {**wakes_s, old: wake_s, **{model: self._cold_s[model] for model in plan.stop}}
        return Sleeping(models, wakes_s)

    def _plan(self, sleeping: Sleeping, old: ModelId, new: ModelId) -> SleepPlan:
        """Plan the sleep of a model."""
        use = HostMemoryUse(asleep=sleeping.models)
        return plan_sleep(old, use, self._costs, self._kind.host_memory_bytes, later=(new,))

    def _plan_alone(self, model: ModelId) -> SleepPlan:
        """Plan the sleep of a model where all fit: what sleeps beside it makes no difference."""
        if model not in self._alone:
            alone = HostMemoryUse(asleep={})
            self._alone[model] = plan_sleep(model, alone, self._costs, self._kind.host_memory_bytes)
        return self._alone[model]

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
