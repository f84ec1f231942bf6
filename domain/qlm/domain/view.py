"""Results of reading the shared state: snapshot of the cluster, classes, queue positions."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from qlm.domain.fleet import InstanceStatus
from qlm.domain.formats.extensions import NO_CLASS_EXTENSIONS, ClassExtensions
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import InstanceId
from qlm.domain.length_histogram import NO_LENGTHS, NO_PROMPTS, LengthHistogram
from qlm.domain.request import RequestRecord, RequestState
from qlm.domain.values import value
from qlm.domain.virtual_queue import VirtualQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueued:
    """Result of `enqueue`.

    Attributes:
        created: False if the id was known already (a retry, or an agent was faster).
        record: The present record.
    """

    created: bool
    record: RequestRecord


@value
class ClassView:
    """Snapshot of a class for the controller.

    Attributes:
        cls: The class.
        queued: Number of its waiting requests.
        groups: Its groups that are not closed, by `seq`, each with its head's arrival.
        ungrouped_arrival_ns: Arrival of the oldest waiting request in no group, if any.
        newest_arrival_ns: Arrival of the newest waiting request.
        accepted: Requests ever accepted.
        kept: Of these, the ones that came from another class with the first token in time that their
            objective is about. They were evicted; the others of a late class missed their objective.
        mean_prompt_tokens: Mean prompt length of accepted requests.
        var_prompt_tokens: Variance of that length.
        mean_max_tokens: Mean output limit of accepted requests.
        var_max_tokens: Variance of that limit.
        prompts: Accepted requests by bin of their prompt length (`LENGTH_EDGES`).
        finished: Requests ever ended with an answer.
        lengths: Lengths of the latest answers.
        extensions: Its optional fields, from its requests; the newest one with a field decides.
    """

    cls: RequestClass
    queued: int
    groups: tuple[Group, ...]
    ungrouped_arrival_ns: int | None = None
    newest_arrival_ns: int | None = None
    accepted: int = 0
    kept: int = 0
    mean_prompt_tokens: float = 0.0
    var_prompt_tokens: float = 0.0
    mean_max_tokens: float = 0.0
    var_max_tokens: float = 0.0
    prompts: tuple[int, ...] = NO_PROMPTS
    finished: int = 0
    lengths: LengthHistogram = NO_LENGTHS
    extensions: ClassExtensions = NO_CLASS_EXTENSIONS

    @property
    def mean_output_tokens(self) -> float | None:
        """Mean length of the latest answers, cut-off ones included; None without any."""
        answers = self.lengths.answers
        return self.lengths.tokens / answers if answers else None

    @property
    def oldest_arrival_ns(self) -> int | None:
        """Arrival of the oldest waiting request, in a group or not; None if none waits."""
        heads = (self.ungrouped_arrival_ns, *(group.head_arrival_ns for group in self.groups))
        return min((each for each in heads if each is not None), default=None) if self.queued else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """Consistent snapshot of the cluster for planning.

    Attributes:
        classes: Classes with waiting requests or open groups.
        instances: Live instances only.
        queues: The virtual queues, those of dead instances included.
        leased: Number of leases of each instance that has any. It is exact, while an instance's own status is
            as old as its last heartbeat.
    """

    classes: tuple[ClassView, ...]
    instances: tuple[InstanceStatus, ...]
    queues: tuple[VirtualQueue, ...]
    leased: Mapping[InstanceId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPosition:
    """Position of a waiting request; its group follows from the order of arrival (see `Group`).

    Attributes:
        predecessors: Waiting requests of its class before it.
        queued: Waiting requests of its class, itself included.
        group: Its group; None if there is none yet.
        group_predecessors: Waiting requests of that group before it.
        instance: Instance with the group on its virtual queue; None if there is none.
    """

    predecessors: int
    queued: int
    group: Group | None = None
    group_predecessors: int = 0
    instance: InstanceId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFilter:
    """Filter of a listing of records; None means any."""

    state: RequestState | None = None
    model: str | None = None
    limit: int = 100
