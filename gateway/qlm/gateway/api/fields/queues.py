"""Queues, groups, plan and leading controller."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict


class ClassQueue(TypedDict):
    """A class of requests and its queue."""

    queue: str  # Name of its durable queue
    model: str  # The model that answers its requests
    slo_class: str  # Label of their objective
    late: bool  # Demoted: their deadline can no longer be met
    cluster: str  # Their token cluster
    priority: int  # Their priority
    target_s: float | None  # The objective that the label stands for; null for batch
    queued: int  # Requests that wait
    groups: int  # Its open groups
    oldest_arrival_s: float | None  # Arrival of the oldest waiting request, seconds since the epoch
    # Arrival of the oldest waiting request that no group covers, seconds since the epoch; null if there is
    # none.
    ungrouped_arrival_s: float | None
    mean_prompt_tokens: float  # Mean prompt length of all its requests so far
    mean_output_tokens: float | None  # Mean length of its latest answers; null before the first
    finished: int  # Requests that ended with an answer


class GroupFields(TypedDict):
    """A group: consecutive requests of a class."""

    id: str  # Its id
    queue: str  # The queue of its class
    model: str  # The model that answers its requests
    slo_class: str  # Label of their objective
    late: bool  # Demoted: their deadline can no longer be met
    seq: int  # Its place among the groups of its class
    count: int  # Requests ever put into it
    pulled: int  # Requests that instances have pulled from it
    remaining: int  # Requests that wait in it
    sealed: bool  # No further request joins it
    # Earliest objective of those that wait, seconds since the epoch; null for batch, for late ones, and if
    # none waits.
    deadline_s: float | None
    instances: Sequence[str]  # Instances whose virtual queues contain it


class InstanceQueue(TypedDict):
    """A virtual queue: the order in which an instance serves groups."""

    instance: str  # The instance
    version: int  # Increases with each change
    groups: Sequence[GroupFields]  # The first is served first


class ClassAttainment(TypedDict):
    """Attainment of a class, of the latest 500 requests that ended, in the last 10 minutes."""

    model: str  # The model that answered
    slo_class: str  # Label of their objective
    priority: int  # Their priority
    judged: int  # Requests that have met or missed it: all but cancelled ones
    missed: int  # Those of them that missed it
    mean_late_by_s: float | None  # Mean lateness of the late answers; null without any
    max_late_by_s: float | None  # Largest lateness; null without a late answer


class Queues(TypedDict):
    """All queues."""

    classes: Sequence[ClassQueue]  # Classes with waiting requests or open groups
    virtual_queues: Sequence[InstanceQueue]  # One per instance
    attainment: Sequence[ClassAttainment]  # By class, also of classes in which nothing waits; none for batch
    finished_per_s: float | None  # Smoothed rate of answers; null until it is known


class Groups(TypedDict):
    """All groups."""

    groups: Sequence[GroupFields]  # By class, in order of arrival


class PublishedPlan(TypedDict):
    """A plan as the controller kept it; [planner-problem.md](../planner-problem.md) has the fields inside."""

    version: int  # Version of this format
    at_ms: int  # Time at which it was made, milliseconds since the epoch
    problem: Mapping[str, Any]  # The planning problem
    plan: Mapping[str, Any]  # The plan


class DividedClass(TypedDict):
    """A class, or all classes of a model, divided by the length of prompts."""

    model: str  # The model that answers its requests
    slo_class: str | None  # Label of their objective; null for all classes of the model, as configured
    priority: int | None  # Their priority; null for all classes of the model
    thresholds: Sequence[int]  # Longest prompts of all clusters but the last, tokens
    clusters: Sequence[str]  # Names of the clusters, as in the queues of the classes


class Clusters(TypedDict):
    """Token clusters."""

    clusters: Sequence[DividedClass]  # Those of models as configured first


class Leader(TypedDict):
    """The controller that plans."""

    id: str  # Its name
    since_s: float | None  # Start of its leadership, seconds since the epoch
    incarnation: int  # Incarnation of the shared state; increases when that is emptied
    term: int  # Increases with each change of the leader


class Leadership(TypedDict):
    """The controller that plans."""

    leader: Leader | None  # Null if no controller plans
