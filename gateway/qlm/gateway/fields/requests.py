"""How requests stand, for clients and for operators."""

from collections.abc import Sequence
from typing import Literal, NotRequired, TypedDict

from qlm.domain.outcome import Outcome
from qlm.domain.request import RequestState
from qlm.domain.sampling import Evictability
from qlm.gateway.fields.openai import ChatCompletion, ErrorFields, TextCompletion


class AcceptedRequest(TypedDict):
    """A request that was accepted, to be answered later.

    Attributes:
        id: Its id, for `/v1/requests/{id}`.
        object: Kind of object.
        model: The model that will answer.
        status: Where it stands; another than `queued` if a retry found it.
    """

    id: str
    object: Literal["qlm.request"]
    model: str
    status: RequestState


class Objective(TypedDict):
    """The objective of a request, without rounding; the fields that its kind has.

    Attributes:
        kind: Which fields it has; `batch` for none.
        deadline_ms: The whole answer within this time of arrival.
        ttft_ms: The first token within this time of arrival.
        tpot_ms: Time per token after it; null if not asked for.
        tokens_per_s: Reading speed after it.
        on_miss: What becomes of it when its moment has passed.
    """

    kind: Literal["deadline", "token", "reading", "batch"]
    deadline_ms: NotRequired[float]
    ttft_ms: NotRequired[float]
    tpot_ms: NotRequired[float | None]
    tokens_per_s: NotRequired[float]
    on_miss: Literal["serve", "drop"]


class RequestStatus(TypedDict):
    """How a request stands; moments are in seconds since the epoch.

    Attributes:
        id: Its id.
        object: Kind of object.
        model: The model it names.
        status: Where it stands.
        outcome: How it ended; null while it has not.
        cancel_requested: A cancel is on its way to the instance that runs it.
        created: When it was accepted, in whole seconds.
        arrival_s: When it was accepted.
        deadline_s: The moment that its objective is about; null if it has none.
        first_token_s: When its first token was there; null while none is.
        ended_s: When it ended; null while it has not.
        slo: Its objective.
        service_tier: The tier that the objective amounts to.
        priority: Its priority.
        prompt_tokens: Length of its prompt.
        output_tokens: Output so far.
        instance: The instance that runs it; null if none does.
    """

    id: str
    object: Literal["qlm.request"]
    model: str
    status: RequestState
    outcome: Outcome | None
    cancel_requested: bool
    created: int
    arrival_s: float
    deadline_s: float | None
    first_token_s: float | None
    ended_s: float | None
    slo: Objective
    service_tier: str
    priority: int
    prompt_tokens: int
    output_tokens: int
    instance: str | None


class RequestAnswer(RequestStatus):
    """The same, and its end.

    Attributes:
        response: The answer, once it ended well.
        error: Why there is none, once it ended badly.
    """

    response: NotRequired[ChatCompletion | TextCompletion]
    error: NotRequired[ErrorFields]


class EventFields(TypedDict):
    """A change in the life of a request.

    Attributes:
        at_s: When, seconds since the epoch.
        what: `accepted`, `leased`, `evicted`, `resumed`, `returned`, `ended`, ...
        why: In a few words; may be empty.
        instance: On which instance; null if on none.
    """

    at_s: float
    what: str
    why: str
    instance: str | None


class AdminRequest(RequestStatus):
    """How a request stands, for operators.

    Attributes:
        tenant: Who sent it.
        queue: The queue of its class.
        evictability: Whether it can make room while it runs.
        detached: Nobody waits for it (`respond-async`).
        events: Its life, oldest first.
    """

    tenant: str
    queue: str
    evictability: Evictability
    detached: bool
    events: Sequence[EventFields]


class Requests(TypedDict):
    """Requests.

    Attributes:
        requests: Newest first.
    """

    requests: Sequence[AdminRequest]


class Waits(TypedDict):
    """Where a request waits.

    Attributes:
        position: In its class; the first is 1.
        queued: Waiting requests of its class.
        group: The group that covers it; null if none does yet.
        group_position: In that group.
        group_requests: Waiting requests of that group.
        instance: On whose virtual queue the group stands; null if on none.
    """

    position: int
    queued: int
    group: str | None
    group_position: int | None
    group_requests: int | None
    instance: str | None


class Story(AdminRequest):
    """The same, and where it waits.

    Attributes:
        waits: Null if it does not wait.
    """

    waits: Waits | None
