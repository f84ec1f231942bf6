"""Statistics of the LLM serving operations of one instance, reported with each heartbeat."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from qlm.domain.ids import ModelId
from qlm.domain.values import value

THRASH_S: Final = 60.0
"""A model swapped in again sooner than this after its swap-out counts as swap thrash."""


class SwapTier(StrEnum):
    """Source of a model's weights at a model swap, fastest first."""

    WARM = "warm"
    """Its process sleeps with the weights in host memory (level 1)."""
    RELOAD = "reload"
    """Its process sleeps without weights (level 2)."""
    COLD = "cold"
    """There is no process."""


class Operation(StrEnum):
    """LLM serving operation; its duration is from the decision to its effect."""

    PULL = "pull"
    """Pull of a request; lasts until the broker has answered the whole pull."""
    EVICT = "evict"
    """Preemption of a request that drops its KV cache; lasts until its last tokens are in the log."""
    RESUME = "resume"
    """Resume of a request with recomputed KV cache; lasts until its next token."""
    SWAP_OUT = "swap_out"
    """Preemption of a request whose KV cache stays in host memory."""
    SWAP_IN = "swap_in"
    """Resume of a request with KV cache loaded from host memory; lasts until its next token."""
    MODEL_SWAP_WARM = "model_swap_warm"
    """Model swap from host memory; includes the sleep of the old model, as do the others."""
    MODEL_SWAP_RELOAD = "model_swap_reload"
    """Model swap from storage into a live process."""
    MODEL_SWAP_COLD = "model_swap_cold"
    """Model swap that starts a process."""
    MODEL_SWAP_FAILED = "model_swap_failed"
    """Model swap that failed."""
    WARM = "warm"
    """Prefetch of a model's weights files into host memory."""
    COOL = "cool"
    """Release of prefetched weights files."""


MODEL_SWAPS: Final = {
    SwapTier.WARM: Operation.MODEL_SWAP_WARM,
    SwapTier.RELOAD: Operation.MODEL_SWAP_RELOAD,
    SwapTier.COLD: Operation.MODEL_SWAP_COLD,
}
"""Model swap operation by source of the weights."""


@value(kw_only=False)
class OperationCount:
    """Number and total duration of an operation for a model; at a model swap, for the new model."""

    operation: Operation
    model: ModelId
    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SwapCharge:
    """Time without a serving model, charged to the class whose group caused the model swaps.

    Attributes:
        cls: Name of the class queue; empty if no group needed the model (the first one of an instance),
            `other` for classes beyond the limit of names.
        count: Model swaps.
        seconds: Time lost.
    """

    cls: str
    count: int
    seconds: float


@value
class OperationStats:
    """Operations of one session of an agent.

    Attributes:
        counts: By operation and model, in the order of their names.
        swap_lost: By class, most seconds first.
        swaps_thrashed: Model swaps that brought a model back within `THRASH_S` of its swap-out.
        ended: Requests whose generation ended by itself.
        observed_s: Duration of the session.
    """

    counts: tuple[OperationCount, ...] = ()
    swap_lost: tuple[SwapCharge, ...] = ()
    swaps_thrashed: int = 0
    ended: int = 0
    observed_s: float = 0.0

    def count(self, *operations: Operation) -> int:
        """Return the number of these operations, over all models."""
        return sum(each.count for each in self.counts if each.operation in operations)

    def seconds(self, *operations: Operation) -> float:
        """Return the total duration of these operations."""
        return sum(each.seconds for each in self.counts if each.operation in operations)

    @property
    def model_swaps(self) -> int:
        """Number of successful model swaps."""
        return self.count(*MODEL_SWAPS.values())


NO_OPERATIONS: Final = OperationStats()
"""Statistics of an agent without operations, or of an older version."""
