"""What is read from the shared state: the cluster at one moment, records and their filters."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from qlm.domain.fleet import InstanceStatus
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import InstanceId
from qlm.domain.length_histogram import NO_LENGTHS, LengthHistogram
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
        newest_arrival_ns: Arrival of the newest waiting request of all.
        accepted: Requests of it that came, ever.
        mean_prompt_tokens: Of those.
        var_prompt_tokens: Variance of that length.
        mean_max_tokens: Of their output limits.
        var_max_tokens: Variance of those.
        finished: Requests that ended with an answer, ever.
        lengths: How long the latest answers were.
    """

    cls: RequestClass
    queued: int
    groups: tuple[Group, ...]
    ungrouped_arrival_ns: int | None = None
    newest_arrival_ns: int | None = None
    accepted: int = 0
    mean_prompt_tokens: float = 0.0
    var_prompt_tokens: float = 0.0
    mean_max_tokens: float = 0.0
    var_max_tokens: float = 0.0
    finished: int = 0
    lengths: LengthHistogram = NO_LENGTHS

    @property
    def mean_output_tokens(self) -> float | None:
        """Of the latest answers, those that were cut off included; None while there is none."""
        answers = self.lengths.answers
        return self.lengths.tokens / answers if answers else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """All that planning needs, read at one moment.

    Attributes:
        classes: Classes with waiting requests or open groups.
        instances: Live instances only.
        queues: The virtual queues, those of dead instances included.
        leased: Requests that each instance holds the lease of, for those with any: exact, where an
            instance's own word is as old as its last heartbeat.
    """

    classes: tuple[ClassView, ...]
    instances: tuple[InstanceStatus, ...]
    queues: tuple[VirtualQueue, ...]
    leased: Mapping[InstanceId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePlace:
    """Where a waiting request stands; its group follows from the order of arrival (see `Group`).

    Attributes:
        ahead: Waiting requests of its class that go before it.
        queued: Waiting requests of its class, itself included.
        group: The group that covers it; None if none does yet.
        group_ahead: Waiting requests of that group that go before it.
        instance: On whose virtual queue the group stands; None if on none.
    """

    ahead: int
    queued: int
    group: Group | None = None
    group_ahead: int = 0
    instance: InstanceId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFilter:
    """Which records a listing shows; None means any."""

    state: RequestState | None = None
    model: str | None = None
    limit: int = 100
