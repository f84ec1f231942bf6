"""Which sleeping models keep their weights in host memory when another one goes to sleep."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qlm.domain.ids import ModelId


@dataclass(frozen=True, slots=True)
class Bedding:
    """What becomes of a model that is to sleep, and of those that sleep already.

    Attributes:
        keep: Its weights stay in host memory; else its engine is stopped.
        stop: Sleeping models whose engines are stopped first, in order.
    """

    keep: bool
    stop: tuple[ModelId, ...] = ()


def bed(
    model: ModelId, warm: Sequence[ModelId], weights_bytes: Mapping[ModelId, int], host_memory_bytes: int
) -> Bedding:
    """Make room for a model by the least recently used ones.

    Args:
        model: The awake model that is to sleep.
        warm: Sleeping models, the least recently used first.
        weights_bytes: Size of each model's weights.
        host_memory_bytes: Memory for all sleeping models together.
    """
    room = host_memory_bytes - weights_bytes[model]
    if room < 0:
        return Bedding(keep=False)
    left, stop = list(warm), []
    while left and sum(weights_bytes[each] for each in left) > room:
        stop.append(left.pop(0))
    return Bedding(keep=True, stop=tuple(stop))
