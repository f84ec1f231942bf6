"""The rule of host memory: which models sleep in it, in which tier, and which are evicted for others.

A model asleep in the warm tier keeps its weights and its process in host memory, one asleep without weights
only its process. Weights files of other models may be prefetched (`agents.core.scheduling.prefetch`). All
share one budget. vLLM (0.32) ignores a second sleep of a sleeping engine, so a sleeping model frees memory
only when its process ends. Engine hosts follow the rule, and plans foresee what it will do.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from qlm.domain.ids import ModelId
from qlm.domain.operations import SwapTier
from qlm.rct_estimator.profiles.profile import Profile

ENGINE_PROCESS_BYTES: Final = 2 * 2**30
"""Host memory of an engine process without weights, bytes: 1.4 to 1.6 GiB were measured of vLLM 0.32 on a CPU
(proportional share, four processes); one with CUDA maps more."""

ALL_TIERS: Final = frozenset(SwapTier)


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapCost:
    """Memory of one model while it sleeps, and its time to serve again, by tier.

    Attributes:
        weights_bytes: Size of its weights.
        process_bytes: Host memory of its process without them, its KV cache in host memory included.
        warm_s: From host memory to serving.
        reload_s: From storage to serving, in a live process.
        cold_s: From nothing to serving.
        unload_s: From serving to memory freed.
    """

    weights_bytes: int
    process_bytes: int = 0
    warm_s: float = 0.0
    reload_s: float = 1.0
    cold_s: float = 1.0
    unload_s: float = 0.0

    @classmethod
    def of(cls, profile: Profile, *, host_kv_bytes: int = 0) -> "SwapCost":
        """Read the cost from a profile; `host_kv_bytes` is the KV cache in host memory of one engine."""
        return cls(
            weights_bytes=profile.weights_bytes,
            process_bytes=ENGINE_PROCESS_BYTES + host_kv_bytes,
            warm_s=profile.swap_warm_s,
            reload_s=profile.swap_reload_s,
            cold_s=profile.swap_cold_s,
            unload_s=profile.unload_s,
        )

    def holds_bytes(self, tier: SwapTier) -> int:
        """Return the host memory of the sleeping model."""
        if tier is SwapTier.COLD:
            return 0
        return self.process_bytes + (self.weights_bytes if tier is SwapTier.WARM else 0)

    def takes_s(self, tier: SwapTier) -> float:
        """Return seconds until it serves."""
        if tier is SwapTier.WARM:
            return self.warm_s
        return self.reload_s if tier is SwapTier.RELOAD else self.cold_s

    def swap_s(self, tier: SwapTier, old: "SwapCost | None") -> float:
        """Return seconds of a swap to it, with the unloading of the model that serves before; None for none.

        Plans and agents price swaps by this function.
        """
        return self.takes_s(tier) + (0.0 if old is None else old.unload_s)

    def saves_s(self, tier: SwapTier) -> float:
        """Return seconds saved against a cold start."""
        return max(0.0, self.cold_s - self.takes_s(tier))

    @property
    def prefetch_saves_s(self) -> float:
        """Seconds saved by a reload whose weights file is in host memory."""
        return max(0.0, self.reload_s - self.warm_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemoryUse:
    """Contents of host memory.

    Attributes:
        asleep: Sleeping models with their tier, least recently used first.
        prefetched: Models whose weights files were prefetched, oldest first.
    """

    asleep: Mapping[ModelId, SwapTier]
    prefetched: tuple[ModelId, ...] = ()

    def bytes(self, costs: Mapping[ModelId, SwapCost]) -> int:
        """Return the host memory of all of it."""
        sleeping = sum(costs[model].holds_bytes(tier) for model, tier in self.asleep.items())
        return sleeping + sum(costs[model].weights_bytes for model in self.prefetched)


@dataclass(frozen=True, slots=True)
class SleepPlan:
    """How to put a model to sleep: its tier, and what to evict from host memory first.

    Attributes:
        tier: Its tier; the engine is stopped if that is COLD.
        stop: Sleeping models whose engines are stopped first, in order.
        drop: Models whose prefetched weights are dropped first.
    """

    tier: SwapTier
    stop: tuple[ModelId, ...] = ()
    drop: tuple[ModelId, ...] = ()


def plan_sleep(
    model: ModelId,
    use: HostMemoryUse,
    costs: Mapping[ModelId, SwapCost],
    host_memory_bytes: int,
    tiers: Collection[SwapTier] = ALL_TIERS,
    later: Sequence[ModelId] = (),
) -> SleepPlan:
    """Choose the tier that saves most time, net of what must be evicted for it.

    Prefetched weights are evicted first, then the least recently used models. The value of one of them halves
    with each model used since, so that among equals the most recently used one is always kept. A model in the
    virtual queue keeps its full value, and is evicted after those that are not, the last in the queue first.

    Args:
        model: The awake model that is to sleep.
        use: Contents of host memory.
        costs: Of each model.
        host_memory_bytes: The budget.
        tiers: Tiers that may be used; COLD always may.
        later: Models that are served after it, in order, as far as known. The first is woken next: it is not
            evicted, and needs its memory until then.
    """
    best, best_s = SleepPlan(SwapTier.COLD), 0.0
    for tier in (SwapTier.WARM, SwapTier.RELOAD):
        if tier not in tiers:
            continue
        budget_bytes = host_memory_bytes - costs[model].holds_bytes(tier)
        plan = _evict_to_fit(use, costs, budget_bytes, tier, later)
        if plan is None:
            continue
        gain_s = costs[model].saves_s(tier) - _loss_s(plan, use, costs, later)
        if gain_s > best_s:
            best, best_s = plan, gain_s
    return best


def _evict_to_fit(
    use: HostMemoryUse,
    costs: Mapping[ModelId, SwapCost],
    budget_bytes: int,
    tier: SwapTier,
    later: Sequence[ModelId],
) -> SleepPlan | None:
    """Evict no more than needed until the rest fits; None if it cannot fit."""
    used = use.bytes(costs)
    if used <= budget_bytes:
        return SleepPlan(tier)
    drop, stop = [], []
    for model in _eviction_order(use.prefetched, later):
        if used > budget_bytes:
            drop.append(model)
            used -= costs[model].weights_bytes
    for model in _eviction_order(use.asleep, later):
        if used > budget_bytes:
            stop.append(model)
            used -= costs[model].holds_bytes(use.asleep[model])
    return SleepPlan(tier, tuple(stop), tuple(drop)) if used <= budget_bytes else None


def _eviction_order(models: Iterable[ModelId], later: Sequence[ModelId]) -> list[ModelId]:
    positions = {model: position for position, model in enumerate(later)}
    evictable = [model for model in models if positions.get(model) != 0]
    return sorted(evictable, key=lambda model: -positions.get(model, len(positions)))


def _loss_s(
    plan: SleepPlan, use: HostMemoryUse, costs: Mapping[ModelId, SwapCost], later: Sequence[ModelId]
) -> float:
    """Return the expected loss of seconds by the evictions of a plan."""
    if not plan.stop and not plan.drop:
        return 0.0
    ages = dict(zip(reversed(tuple(use.asleep)), count(1), strict=False))
    stopped = sum(
        costs[model].saves_s(use.asleep[model]) * (1.0 if model in later else 0.5 ** ages[model])
        for model in plan.stop
    )
    dropped = sum(costs[model].prefetch_saves_s * (1.0 if model in later else 0.5) for model in plan.drop)
    return stopped + dropped


Asleep = Mapping[ModelId, SwapTier]
"""Sleeping models with their tier, least recently used first."""


def asleep_after(asleep: Asleep, old: tuple[ModelId, SleepPlan] | None, new: ModelId) -> Asleep:
    """Return what sleeps after a swap whose sleep is planned.

    Args:
        asleep: What sleeps before it.
        old: The model that was awake, and the plan for its sleep; None if none was, or if it cannot sleep.
        new: The next one.
    """
    after = dict(asleep)
    after.pop(new, None)
    if old is not None:
        model, plan = old
        for stopped in plan.stop:
            del after[stopped]
        if plan.tier is not SwapTier.COLD:
            after[model] = plan.tier
    return after
