"""The state of requests, for clients and for operators."""

from collections.abc import Sequence
from typing import Literal, NotRequired, TypedDict

from qlm.domain.outcome import Outcome
from qlm.domain.request import RequestState
from qlm.domain.sampling import Evictability
from qlm.gateway.api.fields.openai import ChatCompletion, ErrorFields, TextCompletion


class AcceptedRequest(TypedDict):
    """A request that is accepted and will be answered later."""

    id: str  # Its id, for `/v1/requests/{id}`
    object: Literal["qlm.request"]  # Kind of object
    model: str  # The model that will answer
    status: RequestState  # Its state; not `queued` if a retry found it


class TaskFields(TypedDict):
    """The task of several calls that a request belongs to."""

    id: str  # Its name
    deadline_s: float  # Its deadline, seconds since the epoch
    calls_left: int | None  # Calls still to come, this one included; null if its client did not say


class Objective(TypedDict):
    """The objective of a request, without rounding; only the fields of its kind."""

    kind: Literal["deadline", "token", "reading", "batch"]  # Kind of objective; `batch` has no fields
    deadline_ms: NotRequired[float]  # The whole answer within this time of arrival; beside another one, too
    ttft_ms: NotRequired[float]  # The first token within this time of arrival
    tpot_ms: NotRequired[float | None]  # Time per token after it; null if not asked for
    tokens_per_s: NotRequired[float]  # Reading speed after it
    task: NotRequired[TaskFields]  # Its task, from which its deadline follows
    on_miss: Literal["serve", "drop"]  # Whether it is served or dropped once its deadline has passed


class RequestStatus(TypedDict):
    """The state of a request; times are in seconds since the epoch."""

    id: str  # Its id
    object: Literal["qlm.request"]  # Kind of object
    model: str  # The model it names
    status: RequestState  # Its state
    outcome: Outcome | None  # How it ended; null before
    cancel_requested: bool  # A cancel is on its way to the instance that runs it
    created: int  # When it was accepted, in whole seconds
    arrival_s: float  # When it was accepted
    deadline_s: float | None  # Deadline of its objective; null without one
    first_token_s: float | None  # Time of its first token; null before
    ended_s: float | None  # Time of its end; null before
    # Whether it met its objective. Null without one, until that is decided, and if it was cancelled.
    met: bool | None
    # Time by which it missed its objective, or is late already; 0 if it met it. Null as `met`, and without an
    # answer.
    late_by_s: float | None
    slo: Objective  # Its objective
    service_tier: str  # The service tier of its objective
    priority: int  # Its priority
    prompt_tokens: int  # Length of its prompt
    output_tokens: int  # Output tokens so far
    instance: str | None  # The instance that runs it, or ran it last before it ended; null if none


class RequestAnswer(RequestStatus):
    """The state of a request, and its end."""

    response: NotRequired[ChatCompletion | TextCompletion]  # The answer, once it ended well
    error: NotRequired[ErrorFields]  # The error, once it ended badly


class DeletedRequest(TypedDict):
    """A request that was erased."""

    id: str  # Its id
    object: Literal["qlm.request"]  # Kind of object
    deleted: Literal[True]  # It is erased


class EventFields(TypedDict):
    """An event in the history of a request."""

    at_s: float  # Time, seconds since the epoch
    what: str  # `accepted`, `leased`, `evicted`, `resumed`, `returned`, `ended`,
    why: str  # Reason in a few words; may be empty
    instance: str | None  # Its instance; null without one


class AdminRequest(RequestStatus):
    """The state of a request, for operators."""

    tenant: str  # The tenant that sent it
    queue: str  # The queue of its class
    evictability: Evictability  # Whether it can be preempted while it runs
    detached: bool  # Its client does not wait (`respond-async`)
    events: Sequence[EventFields]  # Its history, oldest event first


class Requests(TypedDict):
    """Requests."""

    requests: Sequence[AdminRequest]  # Newest first


class QueuePosition(TypedDict):
    """The queue position of a request."""

    position: int  # Position in its class; the first is 1
    queued: int  # Waiting requests of its class
    group: str | None  # Its group; null if it is in none yet
    group_position: int | None  # Position in that group
    group_requests: int | None  # Waiting requests of that group
    instance: str | None  # The instance whose virtual queue has the group; null if none


class RequestDetails(AdminRequest):
    """The state of a request, and its queue position."""

    waits: QueuePosition | None  # Its queue position; null if it does not wait
