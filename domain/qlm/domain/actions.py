"""What an agent can do, as values: LLM serving operations (QLM, section 5) and the bookkeeping around them.

The agent protocol decides them; interpreters (asyncio, Ray, the simulator) carry them out and decide
nothing.
"""

from qlm.domain.group import RequestClass
from qlm.domain.ids import GroupId, ModelId, QueueName, RequestId, TokenIds
from qlm.domain.lease import Epoch, Holder
from qlm.domain.output import LogEntry
from qlm.domain.ports.broker import Delivery
from qlm.domain.ports.engine import EngineCall
from qlm.domain.request import Request, RequestCard
from qlm.domain.values import value


@value
class Pull:
    """Take up to `limit` requests of a group's class from the global queue (request pulling)."""

    group: GroupId
    cls: RequestClass
    limit: int


@value
class TakeLease:
    """Ask the store for the lease of a request whose message is in hand."""

    card: RequestCard
    group: GroupId | None


@value
class Submit:
    """Start a generation on the awake engine."""

    id: RequestId
    call: EngineCall


@value
class Abort:
    """Stop generations; the end of each stream is the barrier (first half of an eviction)."""

    call_ids: tuple[str, ...]


@value
class Append:
    """Write new tokens and ends to the output logs, in one round trip."""

    entries: tuple[LogEntry, ...]


@value
class Ack:
    """Delete the message of an ended request; always after its result is stored."""

    delivery: Delivery


@value
class NoteParked:
    """Tell the store that a request was evicted and is kept here."""

    id: RequestId
    epoch: Epoch
    why: str


@value
class NoteResumed:
    """Tell the store that a parked request runs again."""

    id: RequestId
    epoch: Epoch


@value
class Return:
    """Give lease and message back: the request waits in its class queue, `home`, again."""

    id: RequestId
    epoch: Epoch | None
    delivery: Delivery
    home: QueueName
    why: str


@value
class Demote:
    """Give the lease back: the request, which cannot be in time any more, waits in its class, a late one.

    Its message moves to that class's queue.
    """

    request: Request
    epoch: Epoch
    delivery: Delivery
    why: str


@value
class HandOver:
    """Pass a message to the hold queue of the live holder of its lease, then acknowledge it."""

    delivery: Delivery
    holder: Holder


@value
class Renew:
    """Renew custody of a message before the broker's acknowledgement timeout, through our hold queue."""

    delivery: Delivery


@value
class DeadLetter:
    """Put a message that can never be served aside, with the reason, then acknowledge it."""

    delivery: Delivery
    reason: str


@value
class Reregister:
    """Tell a store that lost its content what runs here, with the whole output."""

    card: RequestCard
    output: TokenIds


@value
class SwapModel:
    """Make another model the awake one (model swap: warm or reloading if its engine sleeps, else cold).

    Attributes:
        model: The other model.
        later: Models whose turns come after it, in order; the one that is awake until now left out.
    """

    model: ModelId
    later: tuple[ModelId, ...] = ()


@value
class WarmModel:
    """Bring the weights of a model that is to be served later into host memory (model warm start)."""

    model: ModelId


@value
class CoolModel:
    """Let host memory give up what a WarmModel brought."""

    model: ModelId


@value
class ProbeEngine:
    """Ask the awake engine whether it is well: a generation broke off."""


@value
class SetTimer:
    """Send a Tick no later than this."""

    at_ns: int


@value
class Drained:
    """The instance holds nothing any more after it was asked to drain."""


@value
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
    | Demote
    | HandOver
    | Renew
    | DeadLetter
    | Reregister
    | SwapModel
    | WarmModel
    | CoolModel
    | ProbeEngine
    | SetTimer
    | Drained
)
