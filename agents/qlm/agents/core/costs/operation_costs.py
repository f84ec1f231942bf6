"""Costs of serving operations on one instance, for the decisions of its agent."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from qlm.agents.core.costs.engine_speed import EngineSpeed
from qlm.agents.core.costs.host_memory import ASLEEP_IN
from qlm.agents.core.costs.kv_offload import KvSwapCost
from qlm.domain.fleet import EngineState
from qlm.domain.ids import ModelId
from qlm.domain.operations import SwapTier
from qlm.rct_estimator.host_memory import HostMemoryUse, SwapCost, plan_sleep
from qlm.rct_estimator.profiles.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationCosts:
    """Costs by model. Without them an agent does without the operations that depend on them.

    Attributes:
        swap: Of model swaps.
        kv: Of restoring the KV cache of preempted requests.
        speed: Longest durations of the engines, for the watchdog.
        profiles: Speeds of the engines, for the batch that keeps up with readers.
        host_memory_bytes: Memory for sleeping models and prefetched weights.
    """

    swap: Mapping[ModelId, SwapCost] = field(default_factory=dict)
    kv: Mapping[ModelId, KvSwapCost] = field(default_factory=dict)
    speed: Mapping[ModelId, EngineSpeed] = field(default_factory=dict)
    profiles: Mapping[ModelId, Profile] = field(default_factory=dict)
    host_memory_bytes: int = 0

    def swap_ns(self, engines: Mapping[ModelId, EngineState]) -> dict[ModelId, int]:
        """Return nanoseconds until each model that is not awake would serve, unloading included."""
        awake = next((model for model, state in engines.items() if state is EngineState.AWAKE), None)
        old = None if awake is None else self.swap.get(awake)
        return {
            model: round(1e9 * self.swap[model].swap_s(ASLEEP_IN.get(state, SwapTier.COLD), old))
            for model, state in engines.items()
            if model in self.swap and state is not EngineState.AWAKE
        }

    def return_s(self, model: ModelId, use: HostMemoryUse, after: ModelId | None = None) -> float:
        """Return seconds until an awake model would serve again, from the tier in which it would sleep.

        Args:
            model: The awake model; 0 is returned for one without a cost.
            use: Contents of host memory.
            after: The model that serves meanwhile, whose memory is not free for this one; None for any.
        """
        cost = self.swap.get(model)
        if cost is None:
            return 0.0
        later = () if after is None else (after,)
        tier = plan_sleep(model, use, self.swap, self.host_memory_bytes, later=later).tier
        others = (each for name, each in self.swap.items() if name != model)
        return cost.swap_s(tier, max(others, key=lambda each: each.unload_s, default=None))
