"""Request classes and request groups (QLM, definition 4.1).

A class contains homogeneous requests: equal model, objective, token cluster and priority. A group is a
counted range of its class in arrival order: moving a group moves a pointer, never a message.
"""

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from qlm.domain.errors import InvalidValueError
from qlm.domain.ids import GroupId, ModelId, QueueName
from qlm.domain.slo import FINE_GRID, SPEED, Slo, SloGrid
from qlm.domain.values import value

_SEPARATOR: Final = "."

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True, order=True)
class RequestClass:
    """Common properties of the requests in one class queue.

    Attributes:
        model: Model that answers them.
        slo: Label of their objective (`deadline-16s`, `ttft-400ms`, `batch`).
        cluster: Lengths of their prompts (algorithm 1; `qlm.domain.formats.clusters`); `all` if the class is
            not divided by length.
        priority: Lower goes first, as in vLLM; 0 by default.
        target_ms: Objective of the label, in milliseconds; None for batch.
        late: True for the demoted class of requests whose objective is decided: they can no longer meet it,
            or were evicted after the first token that it is about. They are served after requests that can
            still meet theirs, and before batch work.
    """

    model: ModelId
    slo: str
    cluster: str = "all"
    priority: int = 0
    target_ms: float | None = None
    late: bool = False

    @property
    def due_ms(self) -> float | None:
        """Objective that can still be met, in milliseconds; None for batch and late classes."""
        return None if self.late else self.target_ms

    @property
    def about_first_token(self) -> bool:
        """True if the objective is about the first token, not the whole answer."""
        return self.slo.startswith("ttft-")

    @property
    def tokens_per_s(self) -> float | None:
        """Pace of its readers by the label, tokens per second; None without one, and for late classes."""
        pace = self.slo.rpartition(SPEED)[2] if SPEED in self.slo and not self.late else ""
        return float(pace) if pace else None

    def missed(self) -> "RequestClass":
        """Return the demoted class, for requests that can no longer meet the objective."""
        return _late(self)

    @property
    def queue(self) -> QueueName:
        """Name of the class's durable queue: `qlm.class.<model>.<slo>.<cluster>[.p<priority>][.late]`."""
        return _queue_name(self.model, self.slo, self.cluster, self.priority, self.late)


@lru_cache(maxsize=1024)
def request_class(model: ModelId, slo: Slo, priority: int, grid: SloGrid = FINE_GRID) -> RequestClass:
    """Return the class of a request on a grid of objectives, not divided by length."""
    target_ms = slo.target_ms
    floor_ms = None if target_ms is None else grid.floor(target_ms)
    return RequestClass(model=model, slo=slo.label(grid), priority=priority, target_ms=floor_ms)


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
    """Escape a name to letters, digits, `_`, `-`, and `~` with two hex digits per other byte."""
    return _UNSAFE.sub(lambda m: "".join(f"~{b:02x}" for b in m.group().encode()), part)


@value
class Group:
    """A request group: `count` consecutive requests of a class, of which `pulled` are gone.

    The groups of a class, by `seq`, cover its queued requests from the oldest on.

    Attributes:
        id: Identity of the group.
        cls: Class of its requests.
        seq: Position among the groups of its class; earlier groups hold earlier arrivals.
        count: Requests ever assigned to it.
        pulled: Requests that agents have pulled from it.
        sealed: True if no further request joins it.
        created_ns: Time of its creation.
        head_arrival_ns: Arrival of its oldest waiting request; None if none waits.
        last_arrival_ns: Arrival of its newest request; None if that does not wait yet.
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
        """Earliest deadline of its waiting requests; None for batch and late classes and empty groups."""
        if self.cls.due_ms is None or self.head_arrival_ns is None:
            return None
        return self.head_arrival_ns + round(self.cls.due_ms * 1_000_000)

    def hopeful_deadline_ns(self, now_ns: int) -> int | None:
        """Return the deadline, unless all waiting requests have passed theirs: urgency gains nothing then."""
        if self.last_arrival_ns is not None and self.cls.due_ms is not None:
            last_ns = self.last_arrival_ns + round(self.cls.due_ms * 1_000_000)
            if last_ns <= now_ns:
                return None
        return self.deadline_ns
