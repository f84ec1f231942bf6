"""Costs of serving operations on one instance, for the decisions of its agent."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from qlm.agents.core.costs.engine_speed import EngineSpeed
from qlm.agents.core.costs.host_memory import ASLEEP_IN
from qlm.agents.core.costs.kv_offload import KvSwapCost
from qlm.domain.fleet import EngineState
from qlm.domain.ids import ModelId
from qlm.domain.operations import SwapTier
from qlm.rct_estimator.host_memory import SwapCost


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationCosts:
    """Costs by model. Without them an agent does without the operations that depend on them.

    Attributes:
        swap: Of model swaps.
        kv: Of restoring the KV cache of preempted requests.
        speed: Longest durations of the engines, for the watchdog.
        host_memory_bytes: Memory for sleeping models and prefetched weights.
    """

    swap: Mapping[ModelId, SwapCost] = field(default_factory=dict)
    kv: Mapping[ModelId, KvSwapCost] = field(default_factory=dict)
    speed: Mapping[ModelId, EngineSpeed] = field(default_factory=dict)
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
