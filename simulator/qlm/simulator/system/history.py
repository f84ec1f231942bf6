"""What happened in one trial, as plain values in the order of their moments, for the checkers to judge."""

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


class Failed(NamedTuple):
    """A part ended by itself, or an error reached the event loop: a defect."""

    at_s: float
    process: str
    error: str


class Flushed(NamedTuple):
    """The store was emptied."""

    at_s: float
    incarnation: int


class Published(NamedTuple):
    """A gateway's message of a request is stored, as the `number`-th of all messages."""

    at_s: float
    request: Request
    number: int


class Confirmed(NamedTuple):
    """A living gateway heard that its request is stored."""

    at_s: float
    id: RequestId


class Indexed(NamedTuple):
    """The store took note of a request that it did not know."""

    at_s: float
    id: RequestId


class HandedOut(NamedTuple):
    """The broker handed a request's message out."""

    at_s: float
    id: RequestId
    to: str
    redelivered: bool


class Leased(NamedTuple):
    """The store granted a lease, new (`n` counts) or again after it had forgotten the request."""

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
    """A log was brought back by an agent: what the store has of it after that."""

    at_s: float
    id: RequestId
    token_ids: TokenIds


class Released(NamedTuple):
    """A lease was given back or taken from a dead holder, and its request waits again."""

    at_s: float
    id: RequestId


class Ended(NamedTuple):
    """The store noted the end of a request."""

    at_s: float
    id: RequestId
    outcome: Outcome


class Beat(NamedTuple):
    """An agent counts as alive for `ttl_s` from now on; 0 if it said goodbye."""

    at_s: float
    holder: Holder
    ttl_s: float


class Led(NamedTuple):
    """The store said who leads."""

    at_s: float
    leader: str
    term: Term


class Planned(NamedTuple):
    """A controller asked for a change under its term, and it was done or refused."""

    at_s: float
    process: str
    what: str
    term: Term
    done: bool


class Accepted(NamedTuple):
    """A client was told that its request is accepted: 2xx."""

    at_s: float
    client: int
    id: RequestId


class Shown(NamedTuple):
    """A client was shown text; it then has `offset` tokens of its answer."""

    at_s: float
    client: int
    offset: int
    text: str


class Answered(NamedTuple):
    """A client was told the end: an outcome, or why there is none; it has so many tokens, and this text."""

    at_s: float
    client: int
    id: RequestId
    end: str
    offset: int
    text: str


class Started(NamedTuple):
    """An engine began a generation; with it, so many places and KV blocks are needed by what is to stay."""

    at_s: float
    holder: Holder
    id: RequestId
    running: int
    seqs_max: int
    blocks: int
    blocks_max: int


class Resident(NamedTuple):
    """Which engines of an instance are awake or asleep now, and what the sleeping ones hold."""

    at_s: float
    instance: InstanceId
    awake: tuple[ModelId, ...]
    asleep_bytes: int
    host_memory_bytes: int


Event = (
    Fault | Failed | Flushed | Published | Confirmed | Indexed | HandedOut | Leased | Appended | Restored
    | Released | Ended | Beat | Led | Planned | Accepted | Shown | Answered | Started | Resident
)  # fmt: skip


class History:
    """Events in the order in which they happened, and how often each state was reached.

    Attributes:
        events: All events.
        coverage: How often each named state, answer or step occurred.
        closed: The trial is over; what is torn down now is not part of it.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.coverage: Counter[str] = Counter()
        self.closed = False
        self._confirmed: set[RequestId] = set()
        self._ended: set[RequestId] = set()

    def add(self, event: Event) -> None:
        """Note what happened now, unless all is over."""
        if self.closed:
            return
        self.events.append(event)
        if isinstance(event, Confirmed):
            self._confirmed.add(event.id)
        elif isinstance(event, Ended):
            self._ended.add(event.id)

    @property
    def all_ended(self) -> bool:
        """Whether each confirmed request has ended."""
        return self._confirmed <= self._ended
