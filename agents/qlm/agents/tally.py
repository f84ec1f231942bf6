"""Counts and durations of an agent's LLM serving operations, and what its model swaps cost whom."""

from typing import Final

from qlm.agents.events import HeldAhead
from qlm.agents.held import Held
from qlm.domain.actions import CoolModel, WarmModel
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
"""Classes told of by name; those that come later are told of together: heartbeats and metrics stay short."""

_THRASH_NS: Final = round(THRASH_S * 1e9)


class OperationTally:
    """Sums for `OperationStats`, in one life of an agent.

    Attributes:
        ended: Requests whose generation came to its end by itself.
    """

    def __init__(self) -> None:
        self.ended = 0
        self._counts: dict[tuple[Operation, ModelId], list[float]] = {}
        self._charges: dict[str, list[float]] = {}
        self._thrashed = 0
        self._pulls: dict[GroupId, list[tuple[ModelId, int]]] = {}
        self._swap: tuple[ModelId, str, int] | None = None
        self._left_ns: dict[ModelId, int] = {}
        self._warming: tuple[Operation, ModelId, int] | None = None
        self._began_ns: int | None = None
        self._last_ns = 0

    def seen(self, now_ns: int) -> None:
        """Take note of the time."""
        if self._began_ns is None:
            self._began_ns = now_ns
        self._last_ns = max(now_ns, self._last_ns)

    def pulls(self, group: Group, now_ns: int) -> None:
        """A pull begins."""
        self._pulls.setdefault(group.id, []).append((group.cls.model, now_ns))

    def pulled(self, group: GroupId, came: int, now_ns: int) -> None:
        """It has brought so many requests."""
        under_way = self._pulls.get(group)
        if not under_way:
            return
        model, began_ns = under_way.pop(0)
        if not under_way:
            del self._pulls[group]
        if came:
            self._note(Operation.PULL, model, now_ns - began_ns, came)

    def put_aside(self, held: Held, now_ns: int) -> None:
        """A request that made room is parked."""
        operation = Operation.SWAP_OUT if held.swapped_out else Operation.EVICT
        self._note(operation, held.request.model, now_ns - held.aborted_ns)

    def evicted(self, model: ModelId) -> None:
        """A request makes room for a model swap, whose time says what that took."""
        self._note(Operation.EVICT, model, 0)

    def resumed(self, held: Held, now_ns: int) -> None:
        """A request that had begun before has got its next token."""
        operation = Operation.SWAP_IN if held.swapped_in else Operation.RESUME
        self._note(operation, held.request.model, now_ns - held.started_ns)

    def swaps(self, old: ModelId | None, new: ModelId, cause: str, now_ns: int) -> None:
        """A model swap begins, for a class whose queue has this name."""
        if old is not None:
            self._left_ns[old] = now_ns
        self._swap = (new, cause, now_ns)

    def swapped(self, tier: SwapTier | None, now_ns: int) -> None:
        """It is over; without a tier, the model did not come up."""
        if self._swap is None:
            return
        (model, cause, began_ns), self._swap = self._swap, None
        took_ns = now_ns - began_ns
        operation = Operation.MODEL_SWAP_FAILED if tier is None else MODEL_SWAPS[tier]
        self._note(operation, model, took_ns)
        charge = self._charges.setdefault(self._known(cause), [0, 0.0])
        charge[0] += 1
        charge[1] += max(0, took_ns) / 1e9
        left_ns = self._left_ns.get(model)
        if tier is not None and left_ns is not None and began_ns - left_ns < _THRASH_NS:
            self._thrashed += 1

    def warms(self, action: WarmModel | CoolModel, now_ns: int) -> None:
        """A model is being warmed or cooled."""
        operation = Operation.WARM if isinstance(action, WarmModel) else Operation.COOL
        self._warming = (operation, action.model, now_ns)

    def warmed(self, event: HeldAhead, now_ns: int) -> None:
        """That is over, or was refused."""
        if self._warming is None or event.answered is None:
            return
        (operation, model, began_ns), self._warming = self._warming, None
        if not event.refused:
            self._note(operation, model, now_ns - began_ns)

    def stats(self) -> OperationStats:
        """The sums up to the last event."""
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

    def _known(self, cause: str) -> str:
        return cause if cause in self._charges or len(self._charges) < CHARGES_MAX else OTHER

    def _note(self, operation: Operation, model: ModelId, took_ns: int, count: int = 1) -> None:
        # A clock that was set back must not take anything away.
        sums = self._counts.setdefault((operation, model), [0, 0.0])
        sums[0] += count
        sums[1] += max(0, took_ns) / 1e9
