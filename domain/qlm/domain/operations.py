"""What the LLM serving operations of one instance were and took, as an agent tells it with its heartbeat."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from qlm.domain.ids import ModelId

THRASH_S: Final = 60.0
"""A model that is swapped in again sooner than this after it was swapped out is swap thrash."""


class SwapTier(StrEnum):
    """Where a model comes from when it is made the awake one, quickest first."""

    WARM = "warm"
    """Its process sleeps with the weights in host memory (level 1)."""
    RELOAD = "reload"
    """Its process sleeps without weights (level 2)."""
    COLD = "cold"
    """There is no process."""


class Operation(StrEnum):
    """An LLM serving operation; its duration is from the decision to its effect."""

    PULL = "pull"
    """A request was pulled; the time until the broker had answered the whole pull."""
    EVICT = "evict"
    """A running request made room; the time until its last tokens were in the log."""
    RESUME = "resume"
    """An evicted request ran again; the time until its next token, its text being computed again."""
    SWAP_OUT = "swap_out"
    """A running request made room, and host memory kept its KV cache."""
    SWAP_IN = "swap_in"
    """It ran again; the time until its next token, its KV cache being loaded."""
    MODEL_SWAP_WARM = "model_swap_warm"
    """A model came from host memory; the old one's going to sleep is included here and below."""
    MODEL_SWAP_RELOAD = "model_swap_reload"
    """A model came from storage into a live process."""
    MODEL_SWAP_COLD = "model_swap_cold"
    """A model came from nothing."""
    MODEL_SWAP_FAILED = "model_swap_failed"
    """A model did not come up."""
    WARM = "warm"
    """The weights files of a model were brought into host memory ahead of its turn."""
    COOL = "cool"
    """They were let go."""


MODEL_SWAPS: Final = {
    SwapTier.WARM: Operation.MODEL_SWAP_WARM,
    SwapTier.RELOAD: Operation.MODEL_SWAP_RELOAD,
    SwapTier.COLD: Operation.MODEL_SWAP_COLD,
}
"""The operation by where the model came from."""


@dataclass(frozen=True, slots=True)
class OperationCount:
    """How often an operation was done for a model, and how long that took in all.

    Attributes:
        operation: Which.
        model: For which model; the one that came with a model swap.
        count: How often.
        seconds: Its durations added up.
    """

    operation: Operation
    model: ModelId
    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SwapCharge:
    """Time without a serving model, charged to the class whose group had the models swapped.

    Attributes:
        cls: Name of its queue; empty if no group asked for the model (the first one of an instance), `other`
            for the classes that came when enough were told of by name.
        count: Model swaps.
        seconds: Lost.
    """

    cls: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationStats:
    """All operations of one life of an agent.

    Attributes:
        counts: By operation and model, in the order of their names.
        swap_lost: By class, the most seconds first.
        swaps_thrashed: Model swaps that brought back a model within `THRASH_S` of its going.
        ended: Requests whose generation came to its end by itself.
        observed_s: How long all this was counted.
    """

    counts: tuple[OperationCount, ...] = ()
    swap_lost: tuple[SwapCharge, ...] = ()
    swaps_thrashed: int = 0
    ended: int = 0
    observed_s: float = 0.0

    def count(self, *operations: Operation) -> int:
        """How often these were done, for all models."""
        return sum(each.count for each in self.counts if each.operation in operations)

    def seconds(self, *operations: Operation) -> float:
        """How long they took in all."""
        return sum(each.seconds for each in self.counts if each.operation in operations)

    @property
    def model_swaps(self) -> int:
        """Models that came up."""
        return self.count(*MODEL_SWAPS.values())


NO_OPERATIONS: Final = OperationStats()
"""Of an agent that has done nothing, or does not tell."""
