"""A request in an agent's hands, from the moment its message is pulled until it is ended or returned."""

from dataclasses import replace
from enum import Enum, IntEnum, auto
from typing import TYPE_CHECKING, Final

from qlm.domain.actions import Demote, Return
from qlm.domain.ids import GroupId, RequestId
from qlm.domain.lease import Epoch
from qlm.domain.outcome import Outcome
from qlm.domain.ports.broker import Delivery
from qlm.domain.ports.engine import EngineCall
from qlm.domain.request import Request

if TYPE_CHECKING:
    from qlm.agents.work import WorkMeter


class Phase(IntEnum):
    """Where a held request stands; changed by `agents.hands` only. Numbered from 0, as an index."""

    LEASING = 0
    """Its message is in hand; the store has not yet answered."""
    STAGED = 1
    """Leased, waiting for room: fresh, or evicted (parked)."""
    RUNNING = 2
    """Generating."""
    ABORTING = 3
    """Asked to stop; the end of its stream is awaited."""
    CLOSING = 4
    """Not generating; its last tokens or its outcome are on their way to the log."""


GENERATING: Final = (Phase.RUNNING, Phase.ABORTING)
"""The phases in which a request has a place in the engine's batch."""


class Then(Enum):
    """What to do with a request once it no longer generates and its tokens are logged."""

    PARK = auto()
    RETURN = auto()
    DEMOTE = auto()
    END = auto()


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
        resumed_at: Output tokens at that time.
        aborted_ns: When the engine was last asked to stop it.
        parked: It has been evicted and the store was told.
        swapped_out: Its KV cache was in host memory when it was last asked to make room.
        swapped_in: The present generation began with the KV cache of the one before, from host memory.
        kv_meter: Counts what the engine of its last leg does.
        kv_written: Tokens that this engine had written when that leg began.
        order: Its number among all that this agent took in hand.
        blocks: KV blocks that the ledger counts for it; 0 unless it generates.
        spare_tokens: Tokens that still fit into these blocks.
        id: Of the request.
        lax: It has no objective, or has missed it.
        urgency: Sort key: priority, then deadline of its class (none is last), then arrival; smaller first.
    """

    __slots__ = (
        "aborted_ns", "blocks", "call_id", "custody_ns", "delivery", "ending_sent", "epoch", "evictions",
        "group", "id", "kv_meter", "kv_written", "lax", "legs", "logged", "order", "outcome", "output",
        "parked", "phase", "request", "resumed_at", "sent", "spare_tokens", "started_ns", "swapped_in",
        "swapped_out", "then", "urgency", "why",
    )  # fmt: skip

    def __init__(
        self, *, request: Request, delivery: Delivery, custody_ns: int, group: GroupId | None
    ) -> None:
        self.request = request
        self.delivery = delivery
        self.custody_ns = custody_ns
        self.group = group
        self.phase = Phase.LEASING
        self.epoch: Epoch | None = None
        self.output: list[int] = []
        self.sent = 0
        self.logged = 0
        self.ending_sent = False
        self.call_id = ""
        self.legs = 0
        self.evictions = 0
        self.then: Then | None = None
        self.outcome: Outcome | None = None
        self.why = ""
        self.started_ns = 0
        self.resumed_at = 0
        self.aborted_ns = 0
        self.parked = False
        self.swapped_out = False
        self.swapped_in = False
        self.kv_meter: WorkMeter | None = None
        self.kv_written = 0
        self.order = 0
        self.blocks = 0
        self.spare_tokens = 0
        self.id: RequestId = request.id
        # As groups count it: with their own laxer deadlines, all would come after their class's next group.
        cls, arrival_ns = request.cls, request.arrival_ns
        self.lax = cls.due_ms is None
        deadline_ns = None if cls.due_ms is None else arrival_ns + round(cls.due_ms * 1_000_000)
        self.urgency = urgency(cls.priority, deadline_ns, arrival_ns)

    @property
    def tokens(self) -> int:
        """Prompt plus generated tokens: what its KV cache holds."""
        return self.request.prompt_tokens + len(self.output)

    @property
    def tokens_left(self) -> int:
        """Output tokens until its own limit."""
        return self.request.sampling.max_tokens - len(self.output)

    @property
    def ended(self) -> bool:
        """Whether it is settled how it ends."""
        return self.then is Then.END and self.outcome is not None

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
            prompt_ids=(*self.request.prompt_ids, *self.output) if done else self.request.prompt_ids,
            sampling=self.request.sampling.after(done),
            traceparent=self.request.traceparent,
        )

    def back(self, epoch: Epoch | None, why: str) -> Return:
        """Write the return of message and lease (if any is left to give up)."""
        return Return(
            id=self.request.id, epoch=epoch, delivery=self.delivery, home=self.request.cls.queue, why=why
        )

    def into_late_class(self, epoch: Epoch) -> Demote:
        """Write the return of message and lease to where those wait that cannot be in time."""
        request = replace(self.request, cls=self.request.cls.missed())
        return Demote(request=request, epoch=epoch, delivery=self.delivery, why=self.why)


def urgency(priority: int, deadline_ns: int | None, arrival_ns: int) -> tuple[int, float, int]:
    """Order of service between requests: priority, deadline (none is last), arrival."""
    return (priority, float("inf") if deadline_ns is None else deadline_ns, arrival_ns)
