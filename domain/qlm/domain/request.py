"""Requests in the global queue, and their records in the shared state."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

from qlm.domain.errors import InvalidValueError
from qlm.domain.formats.extensions import NO_REQUEST_EXTENSIONS, RequestExtensions
from qlm.domain.group import RequestClass
from qlm.domain.ids import InstanceId, ModelId, RequestId, TokenIds
from qlm.domain.lease import Lease
from qlm.domain.outcome import Outcome
from qlm.domain.sampling import Evictability, Sampling
from qlm.domain.slo import OnMiss, ReadingSlo, Slo, TokenSlo
from qlm.domain.values import value

NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000
PROMPT_TAIL_TOKENS: Final = 8
"""Prompt tokens kept in the metadata, to prime a detokenizer that continues the text."""

ENDED: Final = "ended"
"""Event by which a request ended."""

ERASED: Final = "erased"
"""Event by which the texts of an ended request went; the last one of its history."""

PRIORITY_LIMIT: Final = 10
"""Priorities range from -10 (first) to 10 (last); bounded because each has classes of its own."""


class RequestState(StrEnum):
    """State of a request."""

    QUEUED = "queued"
    RUNNING = "running"
    PARKED = "parked"
    ENDED = "ended"


class AnswerKind(StrEnum):
    """API of the client, which decides the form of the answer."""

    COMPLETION = "completion"
    CHAT = "chat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Options with which a gateway turns token ids into the client's answer.

    Attributes:
        kind: API of the client.
        stop: Stop strings; the text ends before the first one that appears.
        skip_special_tokens: Leave special tokens out of the text.
        include_stop: Keep the stop string in the text.
        echo_text: Text of the prompt if the client wants it repeated, else empty.
    """

    kind: AnswerKind
    stop: tuple[str, ...] = ()
    skip_special_tokens: bool = True
    include_stop: bool = False
    echo_text: str = ""


@value
class RequestMetadata:
    """A request without its prompt, as indexed by the shared state.

    Attributes:
        id: Identity of the request.
        cls: Class in whose queue it waits.
        tenant: Tenant of the client.
        slo: Its objective.
        on_miss: Serve or drop the request when it is late.
        arrival_ns: Time of acceptance, nanoseconds since the epoch.
        prompt_tokens: Length of its prompt.
        prompt_tail: Last few prompt ids.
        sampling: Sampling parameters.
        answer: Form of the answer.
        fingerprint: Digest of the client's body, to distinguish a retry from a reused idempotency key.
        detached: True if no client waits (respond-async); a disconnect never cancels it.
        traceparent: W3C trace context that its spans continue; empty if it is not traced.
        extensions: Its optional fields.
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
    extensions: RequestExtensions = NO_REQUEST_EXTENSIONS

    @property
    def model(self) -> ModelId:
        """Model that must answer; of an adapter its base."""
        return self.cls.model

    @property
    def answers_as(self) -> str:
        """Name by which clients know what answers: the adapter's, else the model's."""
        return self.sampling.adapter or self.cls.model

    @property
    def deadline_ns(self) -> int | None:
        """Deadline of the first token or whole answer, nanoseconds since the epoch; None for batch work."""
        target_ms = self.slo.target_ms
        return None if target_ms is None else self.arrival_ns + round(target_ms * NS_PER_MS)

    @property
    def answered_by_first_token(self) -> bool:
        """True if the deadline is that of the first token: the request cannot be late after it."""
        return isinstance(self.slo, TokenSlo | ReadingSlo)

    @property
    def decided_by_first_token(self) -> bool:
        """True if what comes after the first token, and when, decides nothing about its objective."""
        slo = self.slo
        return isinstance(slo, TokenSlo) and slo.tpot_ms is None and self.extensions.deadline_ms is None

    @property
    def drop_at_ns(self) -> int | None:
        """Time at which it expires if unanswered: the deadline of its task, if it belongs to one.

        None if it is served however late.
        """
        if self.on_miss is not OnMiss.DROP:
            return None
        of_task_ns = self.extensions.task_deadline_ns
        return self.deadline_ns if of_task_ns is None else of_task_ns

    def is_same_request(self, other: "RequestMetadata") -> bool:
        """Return True unless an Idempotency-Key gave this id to two bodies."""
        return self.id == other.id and self.fingerprint == other.fingerprint

    def without_texts(self) -> "RequestMetadata":
        """Return it without texts of its client, and with its fingerprint."""
        kept = replace(self.extensions, render_state=None, response_state=None, unknown=())
        answer = replace(self.answer, stop=(), echo_text="")
        sampling = replace(self.sampling, grammar="", media="")
        return replace(self, prompt_tail=(), answer=answer, sampling=sampling, extensions=kept)

    @property
    def evictability(self) -> Evictability:
        """Permission to preempt it while running."""
        return self.sampling.evictability


@value
class Request(RequestMetadata):
    """A request with its prompt: the message in the global queue.

    Attributes:
        prompt_ids: The prompt as token ids; never empty.
    """

    prompt_ids: TokenIds = field(repr=False)

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise InvalidValueError("prompt", self.prompt_ids, "at least one token")
        if self.prompt_tokens != len(self.prompt_ids):
            raise InvalidValueError("prompt_tokens", self.prompt_tokens, f"{len(self.prompt_ids)}")

    def metadata(self) -> RequestMetadata:
        """Return the request without its prompt."""
        return RequestMetadata(
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
            extensions=self.extensions,
        )


class Event(NamedTuple):
    """One entry of a request's event history, as shown by `qlm requests ID`.

    Attributes:
        at_ns: Time, nanoseconds since the epoch.
        what: `accepted`, `leased`, `evicted`, `resumed`, `returned`, `ended`, ...
        why: Reason in one short sentence or word; may be empty.
        instance: Instance, if the event happened on one.
    """

    at_ns: int
    what: str
    why: str = ""
    instance: InstanceId | None = None


def ends_erased(events: Sequence[Event]) -> bool:
    """Return whether a history ends with the erasure of its request: nothing comes after it."""
    return bool(events) and events[-1].what == ERASED


@value
class RequestRecord:
    """Record of a request in the shared state.

    Attributes:
        metadata: The request without its prompt.
        state: Its state.
        lease: Its lease, if it has one.
        output_tokens: Length of its output log.
        outcome: Its outcome; None until it ends.
        first_token_ns: Time at which its first token reached the log.
        ended_ns: Time of its end.
        reader_late_s: Lateness of its last token for the reader of its objective; None without such a reader,
            before the first token, and in records of earlier versions.
        end_asked: Outcome with which its holder is asked to end it; None if it is not.
        events: Its event history, oldest first; bounded.
    """

    metadata: RequestMetadata
    state: RequestState
    lease: Lease | None = None
    output_tokens: int = 0
    outcome: Outcome | None = None
    first_token_ns: int | None = None
    ended_ns: int | None = None
    reader_late_s: float | None = None
    end_asked: Outcome | None = None
    events: tuple[Event, ...] = ()

    @property
    def cancel_requested(self) -> bool:
        """True while its holder is asked to end it without an answer."""
        return self.end_asked is not None and not self.end_asked.ok

    @property
    def settled(self) -> bool:
        """True once its end is known: it has ended, or is only being ended at a stop string."""
        return self.outcome is not None or (self.end_asked is not None and self.end_asked.ok)

    @property
    def erased(self) -> bool:
        """True if its client had its texts erased: this record is all that is left."""
        return ends_erased(self.events)

    @property
    def instance(self) -> InstanceId | None:
        """Instance that runs it, or, once it has ended, ran it last; None if none did."""
        if self.lease is not None:
            return self.lease.holder.instance
        if self.outcome is None:
            return None
        return next((event.instance for event in reversed(self.events) if event.instance), None)
