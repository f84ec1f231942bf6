"""A request in an agent's hands, from the moment its message is pulled until it is ended or returned."""

from dataclasses import dataclass, field
from enum import Enum, auto

from qlm.domain.actions import Return
from qlm.domain.ids import GroupId
from qlm.domain.lease import Epoch
from qlm.domain.outcome import Outcome
from qlm.domain.ports.broker import Delivery
from qlm.domain.ports.engine import EngineCall
from qlm.domain.request import Request


class Phase(Enum):
    """Where a held request stands."""

    LEASING = auto()
    """Its message is in hand; the store has not yet answered."""
    STAGED = auto()
    """Leased, waiting for room: fresh, or evicted (parked)."""
    RUNNING = auto()
    """Generating."""
    ABORTING = auto()
    """Asked to stop; the end of its stream is awaited."""
    CLOSING = auto()
    """Not generating; its last tokens or its outcome are on their way to the log."""


class Then(Enum):
    """What to do with a request once it no longer generates and its tokens are logged."""

    PARK = auto()
    RETURN = auto()
    END = auto()


@dataclass(slots=True, kw_only=True)
class Held:
    """Mutable state of one request inside the agent protocol.

    Attributes:
        request: The request itself.
        delivery: Its unacknowledged message.
        custody_ns: When that message was received.
        group: The group it was pulled for.
        phase: Where it stands.
        epoch: Of our lease; None while leasing.
        output: All output tokens, those of earlier legs included.
        sent: Output tokens given to the store, answered or not.
        logged: Output tokens known to be in the log.
        ending_sent: The entry with the outcome has been given to the store.
        call_id: Of the present generation.
        legs: Generations started here.
        evictions: Times evicted here.
        then: What follows CLOSING.
        outcome: How it ends, with Then.END.
        why: The reason for `then`.
        started_ns: When the present generation was submitted.
        aborted_ns: When the engine was last asked to stop it.
        parked: It has been evicted and the store was told.
    """

    request: Request
    delivery: Delivery
    custody_ns: int
    group: GroupId | None
    phase: Phase = Phase.LEASING
    epoch: Epoch | None = None
    output: list[int] = field(default_factory=list)
    sent: int = 0
    logged: int = 0
    ending_sent: bool = False
    call_id: str = ""
    legs: int = 0
    evictions: int = 0
    then: Then | None = None
    outcome: Outcome | None = None
    why: str = ""
    started_ns: int = 0
    aborted_ns: int = 0
    parked: bool = False

    @property
    def tokens(self) -> int:
        """Prompt plus generated tokens: what its KV cache holds."""
        return self.request.prompt_tokens + len(self.output)

    @property
    def urgency(self) -> tuple[int, float, int]:
        """Sort key: priority, then deadline (none is last), then arrival; smaller goes first."""
        return urgency(self.request.cls.priority, self.request.deadline_ns, self.request.arrival_ns)

    def finished_by_log(self) -> Outcome | None:
        """How the request ended according to its own output, if an earlier leg already got there."""
        sampling = self.request.sampling
        if len(self.output) > sampling.min_tokens and sampling.ends_with(self.output[-1]):
            return Outcome.STOP
        return Outcome.LENGTH if len(self.output) >= sampling.max_tokens else None

    def next_call(self) -> EngineCall:
        """Build the generation that continues the output: prompt plus output, limits reduced."""
        done = len(self.output)
        self.legs += 1
        epoch = self.epoch or Epoch(0, 0)
        self.call_id = f"{self.request.id}-{epoch.incarnation:x}-{epoch.n}-{self.legs}"
        return EngineCall(
            call_id=self.call_id,
            prompt_ids=(*self.request.prompt_ids, *self.output),
            sampling=self.request.sampling.after(done),
        )

    def back(self, epoch: Epoch | None, why: str) -> Return:
        """Write the return of message and lease (if any is left to give up)."""
        return Return(
            id=self.request.id, epoch=epoch, delivery=self.delivery, home=self.request.cls.queue, why=why
        )


def urgency(priority: int, deadline_ns: int | None, arrival_ns: int) -> tuple[int, float, int]:
    """Order of service between requests: priority, deadline (none is last), arrival."""
    return (priority, float("inf") if deadline_ns is None else deadline_ns, arrival_ns)
