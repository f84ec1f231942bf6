"""What an agent can do, as values: LLM serving operations (QLM, section 5) and the bookkeeping around them.

The agent protocol decides them; interpreters (asyncio, Ray, the simulator) carry them out and decide
nothing.
"""

from dataclasses import dataclass

from qlm.domain.group import RequestClass
from qlm.domain.ids import GroupId, ModelId, QueueName, RequestId, TokenIds
from qlm.domain.lease import Epoch, Holder
from qlm.domain.output import LogEntry
from qlm.domain.ports.broker import Delivery
from qlm.domain.ports.engine import EngineCall
from qlm.domain.request import Request, RequestCard


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """Take up to `limit` requests of a group's class from the global queue (request pulling)."""

    group: GroupId
    cls: RequestClass
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeLease:
    """Ask the store for the lease of a request whose message is in hand."""

    card: RequestCard
    group: GroupId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Start a generation on the awake engine."""

    id: RequestId
    call: EngineCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """Stop generations; the end of each stream is the barrier (first half of an eviction)."""

    call_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Write new tokens and ends to the output logs, in one round trip."""

    entries: tuple[LogEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """Delete the message of an ended request; always after its result is stored."""

    delivery: Delivery


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteParked:
    """Tell the store that a request was evicted and is kept here."""

    id: RequestId
    epoch: Epoch
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteResumed:
    """Tell the store that a parked request runs again."""

    id: RequestId
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """Give lease and message back: the request waits in its class queue, `home`, again."""

    id: RequestId
    epoch: Epoch | None
    delivery: Delivery
    home: QueueName
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """Pass a message to the hold queue of the live holder of its lease, then acknowledge it."""

    delivery: Delivery
    holder: Holder


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    """Renew custody of a message before the broker's acknowledgement timeout, through our hold queue."""

    delivery: Delivery


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """Put a message that can never be served aside, with the reason, then acknowledge it."""

    delivery: Delivery
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reregister:
    """Tell a store that lost its content what runs here, with the whole output."""

    card: RequestCard
    output: TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapModel:
    """Make another model the awake one (model swap: warm if its engine sleeps, else cold)."""

    model: ModelId


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeEngine:
    """Ask the awake engine whether it is well: a generation broke off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer:
    """Send a Tick no later than this."""

    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """The instance holds nothing any more after it was asked to drain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledMessage:
    """A message in hand, decoded."""

    delivery: Delivery
    request: Request


Action = (
    Pull
    | TakeLease
    | Submit
    | Abort
    | Append
    | Ack
    | NoteParked
    | NoteResumed
    | Return
    | HandOver
    | Renew
    | DeadLetter
    | Reregister
    | SwapModel
    | ProbeEngine
    | SetTimer
    | Drained
)
