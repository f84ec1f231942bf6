"""Counts and durations of an agent's serving operations, with the cost of model swaps by class."""

from typing import Final

from qlm.agents.core.request import TrackedRequest
from qlm.domain.actions import PrefetchModel, ReleasePrefetch
from qlm.domain.group import Group
from qlm.domain.ids import GroupId, ModelId
from qlm.domain.metric_labels import OTHER
from qlm.domain.operations import (
    MODEL_SWAPS,
    THRASH_S,
    Operation,
    OperationCount,
    OperationStats,
    SwapCharge,
    SwapTier,
)

CHARGES_MAX: Final = 32
"""Classes counted by name. Later ones are counted together, which keeps heartbeats and metrics short."""

_THRASH_NS: Final = round(THRASH_S * 1e9)


class OperationRecorder:
    """Sums for `OperationStats`, over the life of an agent.

    Attributes:
        ended: Requests whose generation finished by itself.
    """

    def __init__(self) -> None:
        self.ended = 0
        self._counts: dict[tuple[Operation, ModelId], list[float]] = {}
        self._charges: dict[str, list[float]] = {}
        self._thrashed = 0
        self._pulls: dict[GroupId, list[tuple[ModelId, int]]] = {}
        self._swap: tuple[ModelId, str, int] | None = None
        self._left_ns: dict[ModelId, int] = {}
        self._prefetch: tuple[Operation, ModelId, int] | None = None
        self._began_ns: int | None = None
        self._last_ns = 0

    def seen(self, now_ns: int) -> None:
        """Note the current time."""
        if self._began_ns is None:
            self._began_ns = now_ns
        if now_ns > self._last_ns:
            self._last_ns = now_ns

    def pull_began(self, group: Group, now_ns: int) -> None:
        """Note the start of a pull."""
        self._pulls.setdefault(group.id, []).append((group.cls.model, now_ns))

    def pulled(self, group: GroupId, came: int, now_ns: int) -> None:
        """Count a pull that brought `came` requests."""
        pulls = self._pulls.get(group)
        if not pulls:
            return
        model, began_ns = pulls.pop(0)
        if not pulls:
            del self._pulls[group]
        if came:
            self._count(Operation.PULL, model, now_ns - began_ns, came)

    def preempted(self, tracked: TrackedRequest, now_ns: int) -> None:
        """Count a preemption that is complete: the request waits here again."""
        operation = Operation.SWAP_OUT if tracked.generation.swapped_out else Operation.EVICT
        self._count(operation, tracked.request.model, now_ns - tracked.generation.aborted_ns)

    def preempted_for_swap(self, model: ModelId) -> None:
        """Count a preemption for a model swap, whose duration includes that of the preemption."""
        self._count(Operation.EVICT, model, 0)

    def resumed(self, tracked: TrackedRequest, now_ns: int) -> None:
        """Count a resumption, at its first token."""
        operation = Operation.SWAP_IN if tracked.generation.swapped_in else Operation.RESUME
        self._count(operation, tracked.request.model, now_ns - tracked.generation.started_ns)

    def swap_began(self, old: ModelId | None, new: ModelId, cause: str, now_ns: int) -> None:
        """Note the start of a model swap; `cause` is the queue name of the class it serves."""
        if old is not None:
            self._left_ns[old] = now_ns
        self._swap = (new, cause, now_ns)

    def swapped(self, tier: SwapTier | None, now_ns: int) -> None:
        """Count a model swap; without a tier it failed."""
        if self._swap is None:
            return
        (model, cause, began_ns), self._swap = self._swap, None
        took_ns = now_ns - began_ns
        operation = Operation.MODEL_SWAP_FAILED if tier is None else MODEL_SWAPS[tier]
        self._count(operation, model, took_ns)
        known = cause in self._charges or len(self._charges) < CHARGES_MAX
        charge = self._charges.setdefault(cause if known else OTHER, [0, 0.0])
        charge[0] += 1
        charge[1] += max(0, took_ns) / 1e9
        left_ns = self._left_ns.get(model)
        if tier is not None and left_ns is not None and began_ns - left_ns < _THRASH_NS:
            self._thrashed += 1

    def prefetch_began(self, action: PrefetchModel | ReleasePrefetch, now_ns: int) -> None:
        """Note the start of a load or drop of weights."""
        operation = Operation.WARM if isinstance(action, PrefetchModel) else Operation.COOL
        self._prefetch = (operation, action.model, now_ns)

    def prefetch_ended(self, now_ns: int, *, refused: bool) -> None:
        """Count a load or drop of weights unless it was refused."""
        if self._prefetch is None:
            return
        (operation, model, began_ns), self._prefetch = self._prefetch, None
        if not refused:
            self._count(operation, model, now_ns - began_ns)

    def stats(self) -> OperationStats:
        """Return the sums up to the last event."""
        charges = sorted(self._charges.items(), key=lambda item: (-item[1][1], item[0]))
        return OperationStats(
            counts=tuple(
                OperationCount(operation, model, int(count), seconds)
                for (operation, model), (count, seconds) in sorted(self._counts.items())
            ),
            swap_lost=tuple(SwapCharge(cls, int(count), seconds) for cls, (count, seconds) in charges),
            swaps_thrashed=self._thrashed,
            ended=self.ended,
            observed_s=0.0 if self._began_ns is None else (self._last_ns - self._began_ns) / 1e9,
        )

    def _count(self, operation: Operation, model: ModelId, took_ns: int, count: int = 1) -> None:
        sums = self._counts.setdefault((operation, model), [0, 0.0])
        sums[0] += count
        # A clock that was set back must not reduce a sum.
        sums[1] += max(0, took_ns) / 1e9
