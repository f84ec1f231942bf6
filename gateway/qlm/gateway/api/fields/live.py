"""Events of the live page, and its explanations. They may change with any release."""

from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict

from qlm.domain.fleet import EngineState
from qlm.domain.operations import SwapTier
from qlm.gateway.api.fields.queues import ClassAttainment, ClassQueue
from qlm.gateway.api.fields.requests import RequestDetails


class PlannedBar(TypedDict):
    """A group at its place in a plan; times are seconds from that of the plan."""

    id: str  # The group
    model: str  # Its model
    slo_class: str | None  # Label of its objective; null if the group has gone since
    late: bool  # Demoted: its deadline can no longer be met
    priority: int  # Its priority
    requests: int  # Requests that waited in it
    swap: SwapTier | None  # Tier of its model at the model change before it; null without a change
    swap_s: float  # Duration of that change
    start_s: float  # Its first request leaves the queue
    leaves_s: float  # Its last request leaves the queue
    end_s: float  # Mean time at which its last request is answered
    end_early_s: float  # The same at the lower end of its 90 % interval
    end_late_s: float  # At the upper end
    deadline_s: float | None  # Its deadline; null without one
    p_met: float  # Expected share of its requests that meet it
    late_requests: float  # Expected number of those that miss it
    moved: bool  # It is moved here from another instance


class PlannedLane(TypedDict):
    """A virtual queue of a plan."""

    instance: str  # The instance
    kind: str  # Its kind
    loaded_model: str | None  # Its awake model
    busy_s: float  # Time until its present batch has ended, seconds from the time of the plan
    host_used_bytes: int  # Host memory of sleeping models
    host_bytes: int  # Host memory for them
    groups: Sequence[PlannedBar]  # In order of service


class PlanChart(TypedDict):
    """Event `plan`: the latest plan as bars over time."""

    at_ms: int  # Time of the plan, milliseconds since the epoch
    method: str  # Name of its method
    expected_attainment: float | None  # Expected share of requests in time; null if none has a deadline
    late_requests: float  # Expected number of those that miss their deadline
    lanes: Sequence[PlannedLane]  # By name of the instance
    unplaceable: Sequence[str]  # Groups whose model runs on no instance


class Progress(TypedDict):
    """Event `progress`: what has changed since the plan, by the latest look at the queues."""

    remaining: Mapping[str, int]  # Requests that wait, of planned groups of which the number has changed
    unplanned_groups: int  # Groups with waiting requests that the plan does not have
    unplanned_requests: int  # Requests that wait in those, or in no group


class LiveInstance(TypedDict):
    """An instance now."""

    id: str  # Its name
    live: bool  # Its agent sends heartbeats; if not, only the names are known
    accelerator: str  # Kind of accelerator
    active_model: str | None  # The awake model
    engines: Mapping[str, EngineState]  # State of the engine of each model
    running: int  # Requests in its batch
    parked: int  # Pulled requests that wait for a batch slot
    kv_used_tokens: int  # Tokens of KV cache in use
    kv_tokens: int | None  # Those of its cache; null while no engine is awake
    swaps: int  # Model swaps since the start of its agent
    swaps_thrashed: int  # Of those, to a model that was swapped out less than 60 s before
    draining: bool  # It takes no new work
    error: str  # Which engines failed and why; empty if none did


class LiveInstances(TypedDict):
    """Event `instances`."""

    instances: Sequence[LiveInstance]  # By name


class LiveQueues(TypedDict):
    """Event `queues`."""

    classes: Sequence[ClassQueue]  # Classes with waiting requests or open groups
    attainment: Sequence[ClassAttainment]  # By class, of the latest requests
    finished_per_s: float | None  # Smoothed rate of answers


class Tick(TypedDict):
    """Event `tick`, once per interval: the gateway is there, and this is its time."""

    at_ms: int  # Time of the gateway, milliseconds since the epoch
    trouble: str | None  # Why the latest look at the cluster failed; null if it did not
    leader: str | None  # The controller that plans


class ExplanationText(TypedDict):
    """A sentence of an explanation, or a table: columns of cells, those of numbers on the right."""

    text: NotRequired[str]
    title: NotRequired[str]
    columns: NotRequired[Sequence[str]]
    right: NotRequired[Sequence[bool]]
    rows: NotRequired[Sequence[Sequence[str]]]
    notes: NotRequired[Sequence[str]]


class LiveExplanation(TypedDict):
    """Why a group or a request is where it is, as `qlm plan explain` says it."""

    name: str  # The group or request
    parts: Sequence[ExplanationText]  # In the order in which they are read
    request: RequestDetails | None  # The request with its event history; null for a group
