"""Shared state in process: its tables, as one value that every operation takes."""

from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple

from qlm.domain.formats.extensions import LogExtensions
from qlm.domain.group import RequestClass
from qlm.domain.ids import GroupId, InstanceId, RequestId
from qlm.store.core.arrival_order import ArrivalHistory, ArrivalKey
from qlm.store.core.limits import StoreLimits
from qlm.store.core.tables import ClassRow, EventRow, GroupRow, InstanceRow, LeaderRow, QueueRow, RequestRow


class RestoredLog(NamedTuple):
    """Log of an unfinished request from the journal."""

    token_ids: Sequence[int]
    first_token_ns: int
    extensions: LogExtensions


class LeaseTable:
    """Leased requests, and their number by instance."""

    __slots__ = ("by_instance", "rows")

    def __init__(self) -> None:
        self.rows: dict[RequestId, RequestRow] = {}
        self.by_instance: Counter[InstanceId] = Counter()

    def add(self, row: RequestRow, instance: InstanceId) -> None:
        """Add a request that is leased to an instance."""
        self.rows[row.metadata.id] = row
        self.by_instance[instance] += 1

    def remove(self, row: RequestRow) -> None:
        """Remove a request, which need not be leased, and clear its holder."""
        if row.holder is not None:
            self.by_instance[row.holder.instance] -= 1
        row.holder = None
        self.rows.pop(row.metadata.id, None)


class EndTable:
    """Ended requests, and the outbox.

    Attributes:
        ids: Ended requests, oldest first.
        events: The outbox: events by subject.
        due: Heap of (`due_ns`, subject) of events; entries may be stale.
        dropped: Events that were too many.
    """

    __slots__ = ("dropped", "due", "events", "ids")

    def __init__(self) -> None:
        self.ids: deque[RequestId] = deque()
        self.events: dict[str, EventRow] = {}
        self.due: list[tuple[int, str]] = []
        self.dropped = 0


class ClassTable:
    """Classes, with what was learned from their requests.

    Attributes:
        rows: All classes.
        active: Those that had waiting requests or groups at the last view, or were used since.
        idle_since_ns: The others, longest idle first.
    """

    __slots__ = ("active", "idle_since_ns", "rows")

    def __init__(self) -> None:
        self.rows: dict[RequestClass, ClassRow] = {}
        self.active: dict[RequestClass, ClassRow] = {}
        self.idle_since_ns: dict[RequestClass, int] = {}

    def row(self, cls: RequestClass) -> ClassRow:
        """Return the row of a class, made on first use; it is active from now on."""
        row = self.rows.get(cls)
        if row is None:
            row = self.rows[cls] = self.active[cls] = ClassRow(cls)
        elif row.idle:
            row.idle = False
            self.active[cls] = row
            del self.idle_since_ns[cls]
        return row

    def in_use(self, now_ns: int, kept_ns: int) -> list[ClassRow]:
        """Return the classes with waiting requests or groups; forget those idle for `kept_ns`."""
        for row in [row for row in self.active.values() if not (row.groups or len(row.waiting))]:
            del self.active[row.cls]
            row.idle = True
            self.idle_since_ns[row.cls] = now_ns
        while self.idle_since_ns:
            cls, since_ns = next(iter(self.idle_since_ns.items()))
            if since_ns > now_ns - kept_ns:
                break
            del self.idle_since_ns[cls], self.rows[cls]
        return list(self.active.values())


class InstanceReports:
    """Reports of instances for operators: expiry of each, and the reason.

    Attributes:
        unplaced: Instances without a place.
        refused_agents: Instances of which a second agent was refused.
    """

    __slots__ = ("refused_agents", "unplaced")

    def __init__(self) -> None:
        self.unplaced: dict[InstanceId, tuple[int, str]] = {}
        self.refused_agents: dict[InstanceId, tuple[int, str]] = {}


class State:
    """Tables of requests, classes, groups, virtual queues and instances.

    The modules beside this one hold the operations: functions of a State, synchronous and deterministic, with
    times as arguments, in nanoseconds since the epoch. One that changes anything returns (answer, `Effects`)
    and sends nothing itself.

    Attributes:
        incarnation: Identity of this content.
        indexed: True once the global queue was indexed.
        drops: Heap of (`drop_at_ns`, id) of waiting requests; entries may be stale.
        ends: Ended requests, and the outbox.
        reports: What was reported of instances for operators.
        restored: Logs from the journal, until their requests are indexed.
        leader: The last leadership, which may have lapsed.
    """

    def __init__(self, incarnation: int, limits: StoreLimits | None = None) -> None:
        self.incarnation = incarnation
        self.limits = limits or StoreLimits()
        self.indexed = False
        self.requests: dict[RequestId, RequestRow] = {}
        self.arrivals = ArrivalHistory()
        self.leases = LeaseTable()
        self.drops: list[tuple[int, RequestId]] = []
        self.ends = EndTable()
        self.classes = ClassTable()
        self.groups: dict[GroupId, GroupRow] = {}
        self.queues: dict[InstanceId, QueueRow] = {}
        self.instances: dict[InstanceId, InstanceRow] = {}
        self.reports = InstanceReports()
        self.restored: dict[RequestId, RestoredLog] = {}
        self.leader: LeaderRow | None = None

    def class_row(self, cls: RequestClass) -> ClassRow:
        """Return the row of a class, made on first use; it is active from now on."""
        return self.classes.row(cls)

    def has_arrival(self, key: ArrivalKey) -> bool:
        """Return True if the request with this arrival key is still kept."""
        row = self.requests.get(key[1])
        return row is not None and row.metadata.arrival_ns == key[0]
