"""What LLM serving operations cost on one instance, as its agent decides by them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from qlm.agents.host_memory import ASLEEP_IN, SwapCost
from qlm.agents.kv_swap import KvSwapCost
from qlm.domain.fleet import EngineState
from qlm.domain.ids import ModelId
from qlm.domain.operations import SwapTier


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationCosts:
    """Costs by model; an agent that knows none does without the operations they decide.

    Attributes:
        swap: Of model swaps.
        kv: Of bringing back the KV cache of requests that made room.
        host_memory_bytes: For sleeping models and weights files held ahead of their turn.
    """

    swap: Mapping[ModelId, SwapCost] = field(default_factory=dict)
    kv: Mapping[ModelId, KvSwapCost] = field(default_factory=dict)
    host_memory_bytes: int = 0

    def swap_ns(self, engines: Mapping[ModelId, EngineState]) -> dict[ModelId, int]:
        """Nanoseconds until each model that is not awake serves, by where it comes from."""
        return {
            model: round(1e9 * self.swap[model].takes_s(ASLEEP_IN.get(state, SwapTier.COLD)))
            for model, state in engines.items()
            if model in self.swap and state is not EngineState.AWAKE
        }
