"""Event history of one trial, as plain values in order of time: the input of the checkers."""

from collections import Counter
from typing import NamedTuple

from qlm.domain.ids import InstanceId, ModelId, RequestId, TokenIds
from qlm.domain.leadership import Term
from qlm.domain.lease import Epoch, Holder
from qlm.domain.outcome import Outcome
from qlm.domain.output import AppendResult
from qlm.domain.request import Request


class Fault(NamedTuple):
    """A fault began."""

    at_s: float
    kind: str
    target: str


class FaultOver(NamedTuple):
    """A fault ended; what it broke may still be repaired."""

    at_s: float
    kind: str
    target: str


class Stalled(NamedTuple):
    """A generation stands still, since its engine hangs."""

    at_s: float
    instance: InstanceId
    call_id: str


class StallOver(NamedTuple):
    """A generation that stood still goes on, or has ended."""

    at_s: float
    call_id: str


class Failed(NamedTuple):
    """A process ended by itself, noted a defect, or an error reached the event loop."""

    at_s: float
    process: str
    error: str


class Died(NamedTuple):
    """A process was killed or has ended; `life` is the session of an agent."""

    at_s: float
    life: str


class Flushed(NamedTuple):
    """The store was emptied."""

    at_s: float
    incarnation: int


class KeyLost(NamedTuple):
    """The store lost a key."""

    at_s: float
    kind: str
    of: str


class Published(NamedTuple):
    """The broker stored a gateway's request message, the `number`-th of all messages."""

    at_s: float
    request: Request
    number: int


class Confirmed(NamedTuple):
    """A running gateway received the broker's confirm of a request."""

    at_s: float
    id: RequestId


class Indexed(NamedTuple):
    """The store indexed a request that it did not know."""

    at_s: float
    id: RequestId


class LookedUp(NamedTuple):
    """A gateway looked a request up; its answer is still on its way."""

    at_s: float
    id: RequestId
    known: bool


class MessageDelivered(NamedTuple):
    """The broker delivered a request's message."""

    at_s: float
    id: RequestId
    to: str
    redelivered: bool


class Leased(NamedTuple):
    """The store granted a lease, either new or again after it had lost the request."""

    at_s: float
    id: RequestId
    holder: Holder
    epoch: Epoch
    output_tokens: int


class Appended(NamedTuple):
    """The store answered one entry for an output log."""

    at_s: float
    id: RequestId
    epoch: Epoch
    offset: int
    token_ids: TokenIds
    outcome: Outcome | None
    result: AppendResult


class Restored(NamedTuple):
    """An agent restored a log; `token_ids` are the store's after that."""

    at_s: float
    id: RequestId
    token_ids: TokenIds


class Released(NamedTuple):
    """A lease was released, or taken from a dead holder, and its request waits again."""

    at_s: float
    id: RequestId


class Ended(NamedTuple):
    """The store recorded the end of a request."""

    at_s: float
    id: RequestId
    outcome: Outcome


class Heartbeat(NamedTuple):
    """An agent counts as alive for the next `ttl_s`; 0 after it has deregistered."""

    at_s: float
    holder: Holder
    ttl_s: float


class LeaderNamed(NamedTuple):
    """The store answered a request for leadership with the present leader."""

    at_s: float
    leader: str
    term: Term


class FencedWrite(NamedTuple):
    """A controller's write under its term, done or refused."""

    at_s: float
    process: str
    what: str
    term: Term
    done: bool


class Accepted(NamedTuple):
    """A client received status 2xx for its request."""

    at_s: float
    client: int
    id: RequestId


class TextReceived(NamedTuple):
    """A client received text; it then has `offset` tokens of its answer."""

    at_s: float
    client: int
    offset: int
    text: str


class Answered(NamedTuple):
    """A client received the end of its request: an outcome, or an error code without one.

    It then has `offset` tokens and the whole of `text`.
    """

    at_s: float
    client: int
    id: RequestId
    end: str
    offset: int
    text: str


class Started(NamedTuple):
    """An engine began a generation.

    `running` and `blocks` are the batch slots and KV blocks of all generations that are not being aborted.
    """

    at_s: float
    holder: Holder
    id: RequestId
    running: int
    seqs_max: int
    blocks: int
    blocks_max: int


class ResidencyChanged(NamedTuple):
    """Awake engines of an instance, and the host memory of its sleeping ones, after a change."""

    at_s: float
    instance: InstanceId
    awake: tuple[ModelId, ...]
    asleep_bytes: int
    host_memory_bytes: int


Event = (
    Fault | FaultOver | Stalled | StallOver | Failed | Died | Flushed | KeyLost | Published | Confirmed
    | Indexed | LookedUp | MessageDelivered | Leased | Appended | Restored | Released | Ended | Heartbeat
    | LeaderNamed | FencedWrite | Accepted | TextReceived | Answered | Started | ResidencyChanged
)  # fmt: skip


class History:
    """Events in order of time, and the number of times that each state was reached.

    Attributes:
        coverage: Occurrences by name of state, answer or step.
        closed: The trial is over; teardown is not recorded.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.coverage: Counter[str] = Counter()
        self.closed = False
        self._confirmed: set[RequestId] = set()
        self._ended: set[RequestId] = set()

    def add(self, event: Event) -> None:
        """Record an event, unless the history is closed."""
        if self.closed:
            return
        self.events.append(event)
        if isinstance(event, Confirmed):
            self._confirmed.add(event.id)
        elif isinstance(event, Ended):
            self._ended.add(event.id)

    @property
    def all_ended(self) -> bool:
        """True if each confirmed request has ended."""
        return self._confirmed <= self._ended
