"""Host memory of one instance: its contents, and the states of engines that sleep in it."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from qlm.domain.fleet import EngineState
from qlm.domain.ids import ModelId
from qlm.domain.operations import SwapTier
from qlm.rct_estimator.host_memory import ALL_TIERS, HostMemoryUse, SleepPlan, SwapCost, plan_sleep

ASLEEP_AS: Final = {SwapTier.WARM: EngineState.ASLEEP, SwapTier.RELOAD: EngineState.UNLOADED}
"""State of an engine by the tier in which it sleeps."""

ASLEEP_IN: Final = {state: tier for tier, state in ASLEEP_AS.items()}
"""Tier in which an engine sleeps, by its state."""


class HostMemory:
    """Host memory accounting of one instance, for real and simulated engine hosts.

    Args:
        costs: Of each model the instance may serve.
        host_memory_bytes: Budget for sleeping models and prefetched weights.
        tiers: Tiers in which models may sleep.
    """

    def __init__(
        self,
        costs: Mapping[ModelId, SwapCost],
        host_memory_bytes: int,
        tiers: Collection[SwapTier] = ALL_TIERS,
    ) -> None:
        self.costs: Final = costs
        self.host_memory_bytes: Final = host_memory_bytes
        self._tiers = frozenset(tiers)
        self._asleep: dict[ModelId, SwapTier] = {}
        self._prefetched: dict[ModelId, None] = {}

    @property
    def use(self) -> HostMemoryUse:
        """Its contents."""
        return HostMemoryUse(asleep=dict(self._asleep), prefetched=tuple(self._prefetched))

    @property
    def prefetched(self) -> Sequence[ModelId]:
        """Models whose weights files were prefetched."""
        return tuple(self._prefetched)

    def plan_sleep(self, model: ModelId, later: Sequence[ModelId] = ()) -> SleepPlan:
        """Return the plan for an awake model that is to sleep; see `plan_sleep`. Changes nothing."""
        return plan_sleep(model, self.use, self.costs, self.host_memory_bytes, self._tiers, later)

    def tier(self, model: ModelId) -> SwapTier:
        """Return the tier of a model that is not awake."""
        return self._asleep.get(model, SwapTier.COLD)

    def slept(self, model: ModelId, tier: SwapTier) -> None:
        """Note that a model went to sleep."""
        self.gone(model)
        if tier is not SwapTier.COLD:
            self._asleep[model] = tier

    def gone(self, model: ModelId) -> None:
        """Note that a model woke or was stopped."""
        self._asleep.pop(model, None)

    def can_prefetch(self, model: ModelId) -> bool:
        """Return True if the weights file of a model that does not sleep warm also fits."""
        if model in self._prefetched or self._asleep.get(model) is SwapTier.WARM:
            return False
        return self.use.bytes(self.costs) + self.costs[model].weights_bytes <= self.host_memory_bytes

    def fetched(self, model: ModelId) -> None:
        """Note that the weights file of a model was prefetched."""
        self._prefetched[model] = None

    def dropped(self, model: ModelId) -> None:
        """Note that the prefetched weights of a model were dropped."""
        self._prefetched.pop(model, None)
