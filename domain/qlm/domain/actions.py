"""Actions of an agent, as values: LLM serving operations (QLM, section 5) and their side effects.

The pure agent decides them; a shell (asyncio, Ray, the simulator) executes them and decides nothing.
"""

from qlm.domain.group import RequestClass
from qlm.domain.ids import GroupId, ModelId, QueueName, RequestId, TokenIds
from qlm.domain.lease import Epoch, Holder
from qlm.domain.output import LogEntry
from qlm.domain.ports.broker import Delivery
from qlm.domain.ports.engine import EngineCall
from qlm.domain.request import Request, RequestMetadata
from qlm.domain.values import value


@value
class Pull:
    """Pull up to `limit` requests of a group's class from the global queue."""

    group: GroupId
    cls: RequestClass
    limit: int


@value
class AcquireLease:
    """Ask the store for the lease of a request whose message was pulled."""

    metadata: RequestMetadata
    group: GroupId | None


@value
class Submit:
    """Start a generation on the awake engine."""

    id: RequestId
    call: EngineCall


@value
class Abort:
    """Stop generations; the end of each stream is the barrier (first half of a preemption).

    Attributes:
        call_ids: Their engine calls.
        cut: End the streams here too, since the engine may never do it.
    """

    call_ids: tuple[str, ...]
    cut: bool = False


@value
class Append:
    """Write new tokens and ends to the output logs, in one round trip."""

    entries: tuple[LogEntry, ...]


@value
class Ack:
    """Delete the message of an ended request; always after its result is stored."""

    delivery: Delivery


@value
class ReportParked:
    """Report to the store that a request was preempted and is kept by this agent."""

    id: RequestId
    epoch: Epoch
    why: str


@value
class ReportResumed:
    """Report to the store that a parked request runs again."""

    id: RequestId
    epoch: Epoch


@value
class Return:
    """Release lease and message: the request waits in its class queue, `home`, again."""

    id: RequestId
    epoch: Epoch | None
    delivery: Delivery
    home: QueueName
    why: str
    evicted: bool = False


@value
class ReleaseLease:
    """Release the lease of a request that the agent does not have, nor a message of it."""

    id: RequestId
    epoch: Epoch
    why: str


@value
class Demote:
    """Release the lease of a request whose objective is decided, and move it to its late class.

    `request` has the late class already; its message moves to the queue of that class. Mostly it can no
    longer meet its deadline. `evicted` says that it leaves the engine by this step, after the first token
    that it was promised; one that waited preempted may have had that, too.
    """

    request: Request
    epoch: Epoch
    delivery: Delivery
    why: str
    evicted: bool = False


@value
class ForwardMessage:
    """Pass a message to the hold queue of the live holder of its lease, then acknowledge it."""

    delivery: Delivery
    holder: Holder


@value
class RenewDelivery:
    """Renew a delivery before the broker's acknowledgement timeout, through the agent's hold queue.

    Attributes:
        delivery: The delivery.
        other: A second message of its request, which the next action acknowledges: kept if this fails.
    """

    delivery: Delivery
    other: Delivery | None = None


@value
class DeadLetter:
    """Dead-letter a message that cannot be decoded, with the reason, then acknowledge it."""

    delivery: Delivery
    reason: str


@value
class RestoreRequest:
    """Index a running request again, with its whole output, in a store that lost its content."""

    metadata: RequestMetadata
    output: TokenIds


@value
class SwapModel:
    """Make another model the awake one (model swap: warm or reloading if its engine sleeps, else cold).

    Attributes:
        model: Model to wake.
        later: Models with later turns, in order, without the model that is awake now.
    """

    model: ModelId
    later: tuple[ModelId, ...] = ()


@value
class PrefetchModel:
    """Prefetch the weights files of a model into host memory (model warm start)."""

    model: ModelId


@value
class ReleasePrefetch:
    """Drop prefetched weights files from host memory."""

    model: ModelId


@value
class ProbeEngine:
    """Probe the awake engine after a generation broke off or was cut.

    Attributes:
        token_s: Time in which it must generate a token for a new request; 0 for a health probe.
    """

    token_s: float = 0.0


@value
class RestartEngine:
    """Stop the awake engine, which makes no progress, as after a failure with this reason."""

    model: ModelId
    why: str


@value
class SetTimer:
    """Request a Tick no later than `at_ns`."""

    at_ns: int


@value
class Drained:
    """Report that a draining instance holds no request any more."""


@value
class PulledMessage:
    """A pulled message, decoded."""

    delivery: Delivery
    request: Request


Action = (
    Pull
    | AcquireLease
    | Submit
    | Abort
    | Append
    | Ack
    | ReportParked
    | ReportResumed
    | Return
    | ReleaseLease
    | Demote
    | ForwardMessage
    | RenewDelivery
    | DeadLetter
    | RestoreRequest
    | SwapModel
    | PrefetchModel
    | ReleasePrefetch
    | ProbeEngine
    | RestartEngine
    | SetTimer
    | Drained
)
