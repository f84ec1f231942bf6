"""Events: the input of `agents.core.agent`, as values."""

from qlm.domain.actions import PulledMessage
from qlm.domain.fleet import EngineCapacity, EngineState
from qlm.domain.ids import GroupId, ModelId, RequestId, TokenIds
from qlm.domain.lease_answer import LeaseAnswer
from qlm.domain.notices import CancelAsked, DrainAsked, LeaseHeld
from qlm.domain.operations import SwapTier
from qlm.domain.output import AppendResult, LogEntry
from qlm.domain.values import value
from qlm.domain.virtual_queue import VirtualQueue


@value
class QueueRead:
    """The current virtual queue."""

    queue: VirtualQueue


@value
class Pulled:
    """The messages of a Pull, or of the hold queue.

    Attributes:
        group: The group of the Pull; None for the hold queue.
        limit: The limit of the Pull.
        messages: Oldest first.
    """

    group: GroupId | None
    limit: int
    messages: tuple[PulledMessage, ...]


@value
class LeaseAnswered:
    """The store's answer to an AcquireLease or RestoreRequest; None if the store was unreachable."""

    id: RequestId
    answer: LeaseAnswer | None


@value
class GenerationEnded:
    """The end of a generation.

    Attributes:
        call_id: Its engine call.
        finish: `stop`, `length`, `abort`, `refused` (for good), `lost` (the engine died), `declined` (it
            answered that it does not serve, such as by 401), `garbled` (its answer cannot be read) or
            `media_lost` (the store has the media of the prompt no more).
        detail: Message of the engine with `refused`, `lost`, `declined` and `garbled`; the reason with
            `media_lost`.
        cached_tokens: Prompt tokens found in the prefix cache, if the engine reported them.
        blameless: The request cannot be what the engine declined.
    """

    call_id: str
    finish: str
    detail: str = ""
    cached_tokens: int | None = None
    blameless: bool = False


@value
class Progress:
    """New tokens of running generations. Any chunking leads to the same state.

    Attributes:
        chunks: By call id.
        logprobs: Packed log probabilities of the chunks of calls that asked for them, by call id, in order.
        prompt_logprobs: Those of whole prompts, packed, by call id.
        preparing: Calls whose media are read and made ready for the engine.
        late_ns: Present lateness of timers in this process.
    """

    chunks: tuple[tuple[str, TokenIds], ...]
    logprobs: tuple[tuple[str, bytes], ...] = ()
    prompt_logprobs: tuple[tuple[str, bytes], ...] = ()
    preparing: tuple[str, ...] = ()
    late_ns: int = 0


@value
class Appended:
    """The results of an Append; None if the store was unreachable."""

    entries: tuple[LogEntry, ...]
    results: tuple[AppendResult, ...] | None


@value
class EngineChanged:
    """A new state of an engine; `capacity` and `tier` come with AWAKE, `error` with FAILED."""

    model: ModelId
    state: EngineState
    capacity: EngineCapacity | None = None
    tier: SwapTier | None = None
    error: str = ""


@value
class WeightsPrefetched:
    """The weights files in host memory.

    Attributes:
        models: Their models, oldest first.
        requested: The model of the PrefetchModel or ReleasePrefetch that this answers, if any.
        refused: The files of the model do not fit.
    """

    models: tuple[ModelId, ...]
    requested: ModelId | None = None
    refused: bool = False


@value
class EngineProbed:
    """The result of a probe of the awake engine.

    Attributes:
        healthy: It passed.
        by_token: It was asked for a token, not only for its health.
        declined: What it answered, if it declined to serve.
    """

    healthy: bool
    by_token: bool = False
    declined: str = ""


@value
class Tick:
    """A timer has fired."""


Decisive = (
    QueueRead
    | Pulled
    | LeaseAnswered
    | GenerationEnded
    | Appended
    | EngineChanged
    | WeightsPrefetched
    | EngineProbed
    | CancelAsked
    | DrainAsked
    | LeaseHeld
    | Tick
)
"""Events after which the agent decides again what to serve."""

Event = Progress | Decisive
