"""What is read from the shared state: the cluster at one moment, records and their filters."""

from dataclasses import dataclass

from qlm.domain.fleet import InstanceStatus
from qlm.domain.group import Group, RequestClass
from qlm.domain.request import RequestRecord, RequestState
from qlm.domain.virtual_queue import VirtualQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueued:
    """What `enqueue` found or did.

    Attributes:
        created: False if the id was known already: a retry, or an agent was faster.
        record: The record as it now stands.
    """

    created: bool
    record: RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassView:
    """A class as the controller sees it.

    Attributes:
        cls: The class.
        queued: Its waiting requests.
        groups: Its groups that are not closed, by `seq`, each with its head's arrival.
        ungrouped_arrival_ns: Arrival of the oldest waiting request beyond all groups, if any.
        mean_prompt_tokens: Of the requests accepted so far.
        mean_max_tokens: Likewise, of their output limits.
        mean_output_tokens: Of answers finished so far; None while there is none.
        finished: Answers that mean is over.
    """

    cls: RequestClass
    queued: int
    groups: tuple[Group, ...]
    ungrouped_arrival_ns: int | None = None
    mean_prompt_tokens: float = 0.0
    mean_max_tokens: float = 0.0
    mean_output_tokens: float | None = None
    finished: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """All that planning needs, read at one moment.

    Attributes:
        classes: Classes with waiting requests or open groups.
        instances: Live instances only.
        queues: The virtual queues, those of dead instances included.
    """

    classes: tuple[ClassView, ...]
    instances: tuple[InstanceStatus, ...]
    queues: tuple[VirtualQueue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFilter:
    """Which records a listing shows; None means any."""

    state: RequestState | None = None
    model: str | None = None
    limit: int = 100
