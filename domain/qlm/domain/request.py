"""A request as it waits in the global queue, and what the shared state remembers of it."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from qlm.domain.errors import InvalidValueError
from qlm.domain.group import RequestClass
from qlm.domain.ids import InstanceId, ModelId, RequestId, TokenIds
from qlm.domain.lease import Lease
from qlm.domain.outcome import Outcome
from qlm.domain.sampling import Evictability, Sampling
from qlm.domain.slo import OnMiss, ReadingSlo, Slo, TokenSlo
from qlm.domain.values import value

NS_PER_MS: Final = 1_000_000
PROMPT_TAIL_TOKENS: Final = 8
"""Prompt tokens kept on the card, to prime a detokenizer that continues the text."""

PRIORITY_LIMIT: Final = 10
"""Priorities run from -10 (first) to 10 (last); bounded because each is a class of its own."""


class RequestState(StrEnum):
    """Where a request stands in its life."""

    QUEUED = "queued"
    RUNNING = "running"
    PARKED = "parked"
    ENDED = "ended"


class AnswerKind(StrEnum):
    """The shape in which the answer is given back."""

    COMPLETION = "completion"
    CHAT = "chat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a gateway needs to turn token ids back into the answer the client asked for.

    Attributes:
        kind: The API that was called.
        stop: Stop strings; the text ends before the first one that appears.
        skip_special_tokens: Leave special tokens out of the text.
        include_stop: Keep the stop string in the text.
        echo_text: The prompt's text when the client asked to have it repeated, else empty.
    """

    kind: AnswerKind
    stop: tuple[str, ...] = ()
    skip_special_tokens: bool = True
    include_stop: bool = False
    echo_text: str = ""


@value
class RequestCard:
    """All of a request but its prompt: what the shared state indexes.

    Attributes:
        id: Identity of the request.
        cls: The class in whose queue it waits.
        tenant: Who sent it.
        slo: Its objective.
        on_miss: Whether a late request is still served.
        arrival_ns: When it was accepted, nanoseconds since the epoch.
        prompt_tokens: Length of its prompt.
        prompt_tail: The last few prompt ids.
        sampling: How tokens are chosen.
        answer: The shape of the answer.
        fingerprint: Digest of the client's body, to tell a retry from a reused idempotency key.
        detached: Nobody waits for it (respond-async); it is never cancelled because a client left.
        traceparent: W3C trace context that its spans continue; empty if it is not traced.
    """

    id: RequestId
    cls: RequestClass
    tenant: str
    slo: Slo
    on_miss: OnMiss = OnMiss.SERVE
    arrival_ns: int
    prompt_tokens: int
    prompt_tail: TokenIds = ()
    sampling: Sampling
    answer: Answer
    fingerprint: str = ""
    detached: bool = False
    traceparent: str = ""

    @property
    def model(self) -> ModelId:
        """The model that must answer."""
        return self.cls.model

    @property
    def deadline_ns(self) -> int | None:
        """The moment its objective is about, nanoseconds since the epoch; None for batch work."""
        target_ms = self.slo.target_ms
        return None if target_ms is None else self.arrival_ns + round(target_ms * NS_PER_MS)

    @property
    def answered_by_first_token(self) -> bool:
        """Whether the moment its objective is about is that of the first token: it is not late after that."""
        return isinstance(self.slo, TokenSlo | ReadingSlo)

    @property
    def drop_at_ns(self) -> int | None:
        """When it ends as expired if still unanswered; None if it is served however late."""
        return self.deadline_ns if self.on_miss is OnMiss.DROP else None

    @property
    def evictability(self) -> Evictability:
        """Whether it may be evicted while running."""
        return self.sampling.evictability


@value
class Request(RequestCard):
    """A request with its prompt: the message that the global queue holds.

    Attributes:
        prompt_ids: The prompt as token ids; never empty.
    """

    prompt_ids: TokenIds = field(repr=False)

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise InvalidValueError("prompt", self.prompt_ids, "at least one token")
        if self.prompt_tokens != len(self.prompt_ids):
            raise InvalidValueError("prompt_tokens", self.prompt_tokens, f"{len(self.prompt_ids)}")

    def card(self) -> RequestCard:
        """Drop the prompt."""
        return RequestCard(
            id=self.id,
            cls=self.cls,
            tenant=self.tenant,
            slo=self.slo,
            on_miss=self.on_miss,
            arrival_ns=self.arrival_ns,
            prompt_tokens=self.prompt_tokens,
            prompt_tail=self.prompt_tail,
            sampling=self.sampling,
            answer=self.answer,
            fingerprint=self.fingerprint,
            detached=self.detached,
            traceparent=self.traceparent,
        )


class Event(NamedTuple):
    """One change in a request's life, with its reason; `qlm requests ID` tells them in order.

    Attributes:
        at_ns: When, nanoseconds since the epoch.
        what: `accepted`, `leased`, `evicted`, `resumed`, `returned`, `ended`, ...
        why: One short sentence or word; may be empty.
        instance: Where, if on an instance.
    """

    at_ns: int
    what: str
    why: str = ""
    instance: InstanceId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """What the shared state knows of a request.

    Attributes:
        card: The request without its prompt.
        state: Where it stands.
        lease: Who holds it, if anyone.
        output_tokens: Length of its output log.
        outcome: How it ended; None while it has not.
        first_token_ns: When its first token reached the log.
        ended_ns: When it ended.
        cancel_requested: A cancel is on its way to the holder.
        events: Its story, oldest first; bounded.
    """

    card: RequestCard
    state: RequestState
    lease: Lease | None = None
    output_tokens: int = 0
    outcome: Outcome | None = None
    first_token_ns: int | None = None
    ended_ns: int | None = None
    cancel_requested: bool = False
    events: tuple[Event, ...] = ()
