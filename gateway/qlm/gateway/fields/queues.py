"""Queues, groups, and who plans them."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict


class ClassQueue(TypedDict):
    """A class of requests and its queue.

    Attributes:
        queue: Name of its durable queue.
        model: The model that answers its requests.
        slo_class: Label of their objective.
        late: They cannot be in time any more.
        cluster: Their token cluster.
        priority: Their priority.
        target_s: The objective that the label stands for; null for batch.
        queued: Requests that wait.
        groups: Its open groups.
        ungrouped_arrival_s: Arrival of the oldest waiting request that no group covers, seconds since the
            epoch; null if there is none.
        mean_prompt_tokens: Of all its requests so far.
        mean_output_tokens: Of its latest answers; null before the first.
        finished: Requests that ended with an answer.
    """

    queue: str
    model: str
    slo_class: str
    late: bool
    cluster: str
    priority: int
    target_s: float | None
    queued: int
    groups: int
    ungrouped_arrival_s: float | None
    mean_prompt_tokens: float
    mean_output_tokens: float | None
    finished: int


class GroupFields(TypedDict):
    """A group: consecutive requests of a class.

    Attributes:
        id: Its id.
        queue: The queue of its class.
        model: The model that answers its requests.
        slo_class: Label of their objective.
        late: They cannot be in time any more.
        seq: Its place among the groups of its class.
        count: Requests ever given to it.
        pulled: Requests that instances have taken from it.
        remaining: Requests that wait in it.
        sealed: No further request joins it.
        deadline_s: Earliest objective of those that wait, seconds since the epoch; null for batch, for late
            ones, and if none waits.
        instances: On whose virtual queues it stands.
    """

    id: str
    queue: str
    model: str
    slo_class: str
    late: bool
    seq: int
    count: int
    pulled: int
    remaining: int
    sealed: bool
    deadline_s: float | None
    instances: Sequence[str]


class InstanceQueue(TypedDict):
    """A virtual queue: the order in which an instance serves groups.

    Attributes:
        instance: Whose it is.
        version: Grows with each change.
        groups: The first is served first.
    """

    instance: str
    version: int
    groups: Sequence[GroupFields]


class Queues(TypedDict):
    """All queues.

    Attributes:
        classes: Classes with waiting requests or open groups.
        virtual_queues: One per instance.
        finished_per_s: Smoothed rate of answers; null until it is known.
    """

    classes: Sequence[ClassQueue]
    virtual_queues: Sequence[InstanceQueue]
    finished_per_s: float | None


class Groups(TypedDict):
    """All groups.

    Attributes:
        groups: By class, in order of arrival.
    """

    groups: Sequence[GroupFields]


class KeptPlan(TypedDict):
    """A plan as the controller kept it; [planner-problem.md](../planner-problem.md) has the fields inside.

    Attributes:
        version: Of this form.
        at_ms: When it was made, milliseconds since the epoch.
        problem: What was to be planned.
        plan: How it was planned.
    """

    version: int
    at_ms: int
    problem: Mapping[str, Any]
    plan: Mapping[str, Any]


class Leader(TypedDict):
    """The controller that plans.

    Attributes:
        id: Its name.
        since_s: Since when, seconds since the epoch.
        incarnation: Of the shared state; grows when that is emptied.
        term: Grows with each change of the leader.
    """

    id: str
    since_s: float | None
    incarnation: int
    term: int


class Leadership(TypedDict):
    """Who plans.

    Attributes:
        leader: Null if none does.
    """

    leader: Leader | None
