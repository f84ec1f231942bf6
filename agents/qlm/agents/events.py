"""What can happen to an agent, as values; the input of `agents.protocol`."""

from qlm.domain.actions import PulledMessage
from qlm.domain.fleet import EngineCapacity, EngineState
from qlm.domain.ids import GroupId, ModelId, RequestId, TokenIds
from qlm.domain.lease_answer import LeaseAnswer
from qlm.domain.notices import CancelAsked, DrainAsked
from qlm.domain.operations import SwapTier
from qlm.domain.output import AppendResult, LogEntry
from qlm.domain.values import value
from qlm.domain.virtual_queue import VirtualQueue


@value
class QueueRead:
    """The virtual queue as it stands."""

    queue: VirtualQueue


@value
class Pulled:
    """A Pull came back, with as many messages as the class queue had.

    Attributes:
        group: The group pulled for; None for messages found in our hold queue.
        asked: The limit of the Pull.
        messages: Oldest first.
    """

    group: GroupId | None
    asked: int
    messages: tuple[PulledMessage, ...]


@value
class LeaseAnswered:
    """The store answered a TakeLease or Reregister; None if it could not be reached."""

    id: RequestId
    answer: LeaseAnswer | None


@value
class GenerationEnded:
    """A generation is over.

    Attributes:
        call_id: Which.
        finish: `stop`, `length`, `abort`, `refused` (for good) or `lost` (the engine died).
        detail: Message of the engine with `refused` and `lost`.
    """

    call_id: str
    finish: str
    detail: str = ""


@value
class Progress:
    """New tokens of running generations; any chunking leads to the same state.

    Attributes:
        chunks: Call ids and the tokens that each has just got.
    """

    chunks: tuple[tuple[str, TokenIds], ...]


@value
class Appended:
    """An Append came back; `results` is None if the store could not be reached."""

    entries: tuple[LogEntry, ...]
    results: tuple[AppendResult, ...] | None


@value
class EngineChanged:
    """The engine of a model changed state; `capacity` and `tier` come with AWAKE, `error` with FAILED."""

    model: ModelId
    state: EngineState
    capacity: EngineCapacity | None = None
    tier: SwapTier | None = None
    error: str = ""


@value
class HeldAhead:
    """Which weights files are in host memory ahead of their models' turns.

    Attributes:
        models: Whose, the oldest first.
        answered: The model of the Warm- or CoolModel that this answers; None if nobody asked.
        refused: It was to be warmed, but its files cannot be held.
    """

    models: tuple[ModelId, ...]
    answered: ModelId | None = None
    refused: bool = False


@value
class EngineProbed:
    """The awake engine was asked whether it is well."""

    healthy: bool


@value
class Tick:
    """A timer fired."""


Decisive = (
    QueueRead
    | Pulled
    | LeaseAnswered
    | GenerationEnded
    | Appended
    | EngineChanged
    | HeldAhead
    | EngineProbed
    | CancelAsked
    | DrainAsked
    | Tick
)
"""Events after which the agent decides anew what to serve."""

Event = Progress | Decisive
