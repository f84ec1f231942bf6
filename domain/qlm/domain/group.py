"""Request classes and request groups (QLM, definition 4.1).

A class is what makes requests homogeneous: model, objective, token cluster, priority. A group is a
counted range of its class in arrival order: moving a group moves a pointer, never a message.
"""

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from qlm.domain.errors import InvalidValueError
from qlm.domain.ids import GroupId, ModelId, QueueName
from qlm.domain.slo import Slo, bucket_floor
from qlm.domain.values import value

_SEPARATOR: Final = "."
HOPE_SHARE: Final = 0.5
"""A request for which this share of what others take on average is left has some hope: many take less.

With 1 fewer objectives were met below saturation (ServeGen excerpt at 0.8 of FCFS's capacity, two seeds:
0.957 instead of 0.960), and about as many above.
"""
LEAD_SHARE_MAX: Final = 0.9
"""However long answers take, a request that has waited for a tenth of its target is not yet given up."""
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True, order=True)
class RequestClass:
    """What the requests of one class queue have in common.

    Attributes:
        model: The model that answers them.
        slo: Label of their objective (`deadline-16s`, `ttft-400ms`, `batch`).
        cluster: Token cluster (Algorithm 1); `all` until a table is fitted.
        priority: Lower goes first, as in vLLM; 0 unless the client says otherwise.
        target_ms: The objective that the label stands for, in milliseconds; None for batch.
        late: Its requests cannot be in time any more: whatever can be goes first, batch work after them.
    """

    model: ModelId
    slo: str
    cluster: str = "all"
    priority: int = 0
    target_ms: float | None = None
    late: bool = False

    @property
    def due_ms(self) -> float | None:
        """The objective that can still be met, in milliseconds; None if there is none (any more)."""
        return None if self.late else self.target_ms

    def missed(self) -> "RequestClass":
        """The class of those of its requests that cannot be in time any more."""
        return _late(self)

    @property
    def queue(self) -> QueueName:
        """Name of the class's durable queue: `qlm.class.<model>.<slo>.<cluster>[.p<priority>][.late]`."""
        return _queue_name(self.model, self.slo, self.cluster, self.priority, self.late)


def lead_s(target_ms: float, takes_s: float) -> float:
    """How long before its objective's moment a request must start, in seconds, to be worth starting in time.

    Args:
        target_ms: The objective.
        takes_s: Seconds from the start to what the objective is about, on average.
    """
    return min(HOPE_SHARE * takes_s, LEAD_SHARE_MAX * target_ms / 1000)


def request_class(model: ModelId, slo: Slo, priority: int) -> RequestClass:
    """The class of a request, until token clusters are fitted."""
    target_ms = slo.target_ms
    bucket_ms = None if target_ms is None else bucket_floor(target_ms)
    return RequestClass(model=model, slo=slo.label, priority=priority, target_ms=bucket_ms)


@lru_cache(maxsize=1024)
def _late(cls: RequestClass) -> RequestClass:
    return replace(cls, late=True)


@lru_cache(maxsize=1024)
def _queue_name(model: ModelId, slo: str, cluster: str, priority: int, late: bool) -> QueueName:
    parts = ["qlm", "class", *map(queue_part, (model, slo, cluster))]
    if priority:
        parts.append(f"p{priority}")
    if late:
        parts.append("late")
    return QueueName(_SEPARATOR.join(parts))


def queue_part(part: str) -> str:
    """Write a name with letters, digits, `_` and `-` only, reversibly: `~` and two hex digits per byte."""
    return _UNSAFE.sub(lambda m: "".join(f"~{b:02x}" for b in m.group().encode()), part)


@value
class Group:
    """A request group: `count` consecutive requests of a class, of which `pulled` are gone.

    Which requests these are follows from the class's arrival order: the class's groups, by `seq`,
    cover its queued requests from the oldest on.

    Attributes:
        id: Identity of the group.
        cls: Class of its requests.
        seq: Position among the groups of its class; earlier groups hold earlier arrivals.
        count: Requests ever given to it.
        pulled: Requests that agents have taken from it.
        sealed: No further request joins it.
        created_ns: When it was formed.
        head_arrival_ns: Arrival of its oldest waiting request; None when none waits.
        last_arrival_ns: Arrival of its newest one; None when it does not wait yet.
    """

    id: GroupId
    cls: RequestClass
    seq: int
    count: int
    pulled: int = 0
    sealed: bool = False
    created_ns: int = 0
    head_arrival_ns: int | None = None
    last_arrival_ns: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.pulled <= self.count:
            raise InvalidValueError("group.pulled", self.pulled, f"0 to count ({self.count})")

    @property
    def remaining(self) -> int:
        """Requests still waiting in it."""
        return self.count - self.pulled

    @property
    def deadline_ns(self) -> int | None:
        """Earliest objective of its waiting requests; None for batch, late ones, or an empty group."""
        if self.cls.due_ms is None or self.head_arrival_ns is None:
            return None
        return self.head_arrival_ns + round(self.cls.due_ms * 1_000_000)

    def hopeful_deadline_ns(self, now_ns: int) -> int | None:
        """The deadline; None, too, if all of its waiting requests are past theirs: haste gains nothing."""
        if self.last_arrival_ns is not None and self.cls.due_ms is not None:
            last_ns = self.last_arrival_ns + round(self.cls.due_ms * 1_000_000)
            if last_ns <= now_ns:
                return None
        return self.deadline_ns
