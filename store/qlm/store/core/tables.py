"""Rows of the shared state: mutable, used by the modules of the core only."""

from array import array
from dataclasses import dataclass, field
from operator import is_
from typing import Final, NamedTuple

from qlm.domain.attainment import OutputTimes
from qlm.domain.fleet import InstanceStatus
from qlm.domain.formats.extensions import (
    NO_CLASS_EXTENSIONS,
    NO_LOG_EXTENSIONS,
    ClassExtensions,
    LogExtensions,
    merged,
)
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import ControllerId, GatewayId, GroupId, InstanceId, ModelId, TokenIds
from qlm.domain.lease import Epoch, Holder, Lease
from qlm.domain.length_histogram import NO_PROMPTS, length_bin
from qlm.domain.outcome import Outcome
from qlm.domain.ports.outbox import EndEvent
from qlm.domain.request import Event, RequestMetadata, RequestRecord, RequestState
from qlm.domain.view import RequestPosition
from qlm.domain.virtual_queue import ClassForecast, VirtualQueue
from qlm.store.core.arrival_order import ArrivalKey, ArrivalOrder
from qlm.store.core.length_stats import LengthStats


@dataclass(slots=True, eq=False)
class GroupRow:
    """Group that is not closed; `queue` is the instance with the group on its virtual queue, if any."""

    id: GroupId
    cls: "ClassRow"
    seq: int
    count: int
    created_ns: int
    pulled: int = 0
    sealed: bool = False
    queue: InstanceId | None = None
    _value: Group | None = None
    _valid: tuple[tuple[int, int], int, int, bool] | None = None

    @property
    def remaining(self) -> int:
        """Number of requests not yet pulled."""
        return self.count - self.pulled

    def value(self, rank: int) -> Group:
        """Return the group as a value, the same object until it changes; `rank` requests wait before it."""
        valid = (self.cls.waiting.place(rank), self.count, self.pulled, self.sealed)
        if self._value is not None and valid == self._valid:
            return self._value
        remaining, arrival_ns = self.remaining, self.cls.waiting.arrival_ns
        head_arrival_ns = arrival_ns(rank) if remaining else None
        last_arrival_ns = arrival_ns(rank + remaining - 1) if remaining else None
        # Counted requests may not wait yet: then the arrivals are looked up again.
        self._valid = None if last_arrival_ns is None and remaining else valid
        value = self._value
        if (
            value is None
            or value.head_arrival_ns != head_arrival_ns
            or value.last_arrival_ns != last_arrival_ns
            or value.count != self.count
            or value.pulled != self.pulled
            or value.sealed != self.sealed
        ):
            value = self._value = Group(
                id=self.id,
                cls=self.cls.cls,
                seq=self.seq,
                count=self.count,
                pulled=self.pulled,
                sealed=self.sealed,
                created_ns=self.created_ns,
                head_arrival_ns=head_arrival_ns,
                last_arrival_ns=last_arrival_ns,
            )
        return value


@dataclass(slots=True, eq=False)
class ClassRow:
    """Class: its waiting requests, its groups by `seq`, and sums over its requests.

    `idle` is True once a view found neither requests nor groups.
    """

    cls: RequestClass
    waiting: ArrivalOrder = field(default_factory=ArrivalOrder)
    groups: list[GroupRow] = field(default_factory=list)
    idle: bool = False
    next_seq: int = 0
    accepted: int = 0
    kept: int = 0
    prompt_tokens: int = 0
    prompt_squares: int = 0
    max_tokens: int = 0
    max_squares: int = 0
    prompts: list[int] = field(default_factory=lambda: [*NO_PROMPTS])
    finished: int = 0
    lengths: LengthStats = field(default_factory=LengthStats)
    extensions: ClassExtensions = NO_CLASS_EXTENSIONS

    def accept(self, metadata: RequestMetadata) -> None:
        """Add a request to the sums of accepted requests, and keep the extensions of its class."""
        prompt_tokens, max_tokens = metadata.prompt_tokens, metadata.sampling.max_tokens
        self.accepted += 1
        self.prompt_tokens += prompt_tokens
        self.prompt_squares += prompt_tokens * prompt_tokens
        self.prompts[length_bin(max(1, prompt_tokens))] += 1
        self.max_tokens += max_tokens
        self.max_squares += max_tokens * max_tokens
        if metadata.extensions.cls is not NO_CLASS_EXTENSIONS:
            self.extensions = merged(self.extensions, metadata.extensions.cls)

    def sliced(self) -> tuple[tuple[Group, ...], int | None]:
        """Divide the waiting requests among the groups, by their remaining counts.

        Returns:
            The groups, each with the arrival of its head, and the arrival of the first ungrouped request.
        """
        groups, rank = [], 0
        for group in self.groups:
            groups.append(group.value(rank))
            rank += group.remaining
        return tuple(groups), self.waiting.arrival_ns(rank)

    def groups_of(self, instance: InstanceId, count: int) -> dict[GroupId, Group]:
        """Return the groups of `sliced` that are on the virtual queue of one instance, `count` in all."""
        groups, rank = dict[GroupId, Group](), 0
        for group in self.groups:
            if group.queue == instance:
                groups[group.id] = group.value(rank)
                count -= 1
                if not count:
                    break
            rank += group.remaining
        return groups

    def position_of(self, key: ArrivalKey) -> RequestPosition:
        """Return the position of a waiting request in the class and in its group."""
        predecessors, queued, before = self.waiting.rank(key), len(self.waiting), 0
        for group in self.groups:
            if predecessors < before + group.remaining:
                return RequestPosition(
                    predecessors=predecessors,
                    queued=queued,
                    group=group.value(before),
                    group_predecessors=predecessors - before,
                    instance=group.queue,
                )
            before += group.remaining
        return RequestPosition(predecessors=predecessors, queued=queued)


@dataclass(slots=True, eq=False)
class QueueRow:
    """Virtual queue."""

    version: int = 0
    groups: list[GroupId] = field(default_factory=list)
    forecasts: tuple[ClassForecast, ...] = ()
    homes: tuple[ModelId, ...] = ()
    _value: VirtualQueue | None = None

    def value(self, instance: InstanceId, groups: tuple[Group, ...]) -> VirtualQueue:
        """Return the queue as a value, the same object until it or one of its groups changes."""
        known = self._value
        if (
            known is None
            or known.version != self.version
            or known.forecasts is not self.forecasts
            or known.homes is not self.homes
            or len(known.groups) != len(groups)
            or not all(map(is_, known.groups, groups))
        ):
            known = self._value = VirtualQueue(
                instance=instance,
                version=self.version,
                groups=groups,
                forecasts=self.forecasts,
                homes=self.homes,
            )
        return known


@dataclass(slots=True, eq=False)
class InstanceRow:
    """Last heartbeat of an instance, and whether its present session shall drain."""

    status: InstanceStatus
    alive_until_ns: int
    drain_asked: bool = False


@dataclass(slots=True, eq=False)
class LeaderRow:
    """Controller that leads until `until_ns`, and the number of its term."""

    name: ControllerId
    n: int
    since_ns: int
    until_ns: int = 0


class EventRow(NamedTuple):
    """Event of the outbox, and the time at which it is due."""

    event: EndEvent
    due_ns: int


class Cancel(NamedTuple):
    """End that the holder of a request was asked for, and the reason; empty for none."""

    outcome: Outcome
    why: str


_NO_LEASE: Final = Epoch(0, 0)


class RequestRow:
    """Request. `cancel` is the end that its holder was asked for.

    `epoch` is that of its latest lease; its n is 0 before the first. Its incarnation differs from that of an
    earlier row of the request, which the store has lost or dropped: it is the time at which the row was made.
    `times` are those at which its log grew.
    `waiting` is True while the request is in the arrival order of its class.
    """

    __slots__ = (
        "cancel", "cls", "detail", "ended_ns", "epoch", "events", "extensions", "holder", "log",
        "metadata", "outcome", "state", "times", "waiting", "watchers",
    )  # fmt: skip

    def __init__(
        self, metadata: RequestMetadata, cls: ClassRow, state: RequestState = RequestState.QUEUED
    ) -> None:
        self.metadata = metadata
        self.cls = cls
        self.state = state
        self.waiting = False
        self.holder: Holder | None = None
        self.epoch = _NO_LEASE
        self.log: array[int] = array("I")
        self.extensions: LogExtensions = NO_LOG_EXTENSIONS
        self.outcome: Outcome | None = None
        self.detail = ""
        self.times = OutputTimes(metadata)
        self.ended_ns: int | None = None
        self.cancel: Cancel | None = None
        self.watchers: dict[GatewayId, None] = {}
        self.events: list[Event] = []

    @property
    def key(self) -> ArrivalKey:
        """Sort key of the arrival order."""
        return (self.metadata.arrival_ns, self.metadata.id)

    def tokens(self, offset: int = 0) -> TokenIds:
        """Return the log from `offset` on."""
        return tuple(self.log[offset:] if offset else self.log)

    def record(self) -> RequestRecord:
        """Return the record of the request."""
        return RequestRecord(
            metadata=self.metadata,
            state=self.state,
            lease=Lease(self.holder, self.epoch) if self.holder else None,
            output_tokens=len(self.log),
            outcome=self.outcome,
            first_token_ns=self.times.first_ns,
            ended_ns=self.ended_ns,
            reader_late_s=self.times.reader_late_s,
            end_asked=self.cancel.outcome if self.cancel else None,
            events=tuple(self.events),
        )
