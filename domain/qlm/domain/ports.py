"""The ports: what QLM asks of the world. Each has a contract suite that runs on every implementation."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from qlm.domain.fleet import EngineCapacity, InstanceStatus
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import GatewayId, GroupId, InstanceId, QueueName, RequestId, TokenIds
from qlm.domain.lease import Epoch, Holder, Lease
from qlm.domain.outcome import Outcome
from qlm.domain.output import AppendResult, LogEntry, OutputSlice
from qlm.domain.request import RequestCard, RequestRecord, RequestState
from qlm.domain.sampling import Sampling
from qlm.domain.virtual_queue import VirtualQueue


class Clock(Protocol):
    """Source of time. Times inside QLM are integer nanoseconds since the epoch."""

    def now_ns(self) -> int:
        """Return the present time in nanoseconds since the epoch."""
        ...


# --- the global queue --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message handed out but not yet acknowledged.

    Attributes:
        queue: Where it came from.
        tag: The implementation's handle; opaque.
        body: The message.
        redelivered: It may have been handed out before: check its lease.
    """

    queue: QueueName
    tag: object
    body: bytes
    redelivered: bool


class Broker(Protocol):
    """Durable FIFO queues of messages.

    A message is either ready, handed out (to one holder), or gone. What is handed out returns, marked
    redelivered, when its holder's connection dies. Order is first in, first out among messages never
    returned; a returned message comes back no later than the messages published after it on one
    node, and in any order on a replicated queue.
    """

    async def publish(self, queue: QueueName, body: bytes) -> None:
        """Store a message durably; the queue is declared on first use.

        Returns only when the message is safe (confirmed, or synced to disk).

        Raises:
            BrokerUnavailableError: It is not known to be stored.
        """
        ...

    async def get(self, queue: QueueName, limit: int = 1) -> Sequence[Delivery]:
        """Take up to `limit` messages from the front; fewer, or none, if the queue holds fewer.

        Raises:
            BrokerUnavailableError: The broker cannot be reached.
        """
        ...

    async def ack(self, delivery: Delivery) -> None:
        """Delete a message handed out here.

        Raises:
            DeliveryLostError: It is not ours any more.
        """
        ...

    async def requeue(self, delivery: Delivery) -> None:
        """Give a message back; it is marked redelivered from then on.

        Raises:
            DeliveryLostError: It is not ours any more.
        """
        ...

    async def depth(self, queue: QueueName) -> int:
        """Messages ready in a queue (not those handed out); 0 for a queue never used."""
        ...

    async def queues(self) -> Sequence[QueueName]:
        """Names of all queues ever published to, by any process."""
        ...

    async def close(self) -> None:
        """Let go of the connection; what is handed out returns to its queues."""
        ...


# --- the shared state --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueued:
    """What `enqueue` found or did.

    Attributes:
        created: False if the id was known already: a retry, or an agent was faster.
        record: The record as it now stands.
    """

    created: bool
    record: RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """The lease is ours.

    Attributes:
        lease: The lease, with a fresh epoch.
        output: Token ids already in the log, to be resumed from.
    """

    lease: Lease
    output: TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Another live holder runs the request.

    Attributes:
        holder: Who.
    """

    holder: Holder


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """The request has ended; its message can be dropped.

    Attributes:
        outcome: How it ended.
    """

    outcome: Outcome


LeaseAnswer = Granted | Held | Over


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassView:
    """A class as the controller sees it.

    Attributes:
        cls: The class.
        queued: Its waiting requests.
        groups: Its groups that are not closed, by `seq`, each with its head's arrival.
        ungrouped_arrival_ns: Arrival of the oldest waiting request beyond all groups, if any.
        mean_prompt_tokens: Of the requests accepted so far.
        mean_max_tokens: Likewise, of their output limits.
        mean_output_tokens: Of answers finished so far; None while there is none.
        finished: Answers that mean is over.
    """

    cls: RequestClass
    queued: int
    groups: tuple[Group, ...]
    ungrouped_arrival_ns: int | None = None
    mean_prompt_tokens: float = 0.0
    mean_max_tokens: float = 0.0
    mean_output_tokens: float | None = None
    finished: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """All that planning needs, read at one moment.

    Attributes:
        classes: Classes with waiting requests or open groups.
        instances: Live instances only.
        queues: The virtual queues, those of dead instances included.
    """

    classes: tuple[ClassView, ...]
    instances: tuple[InstanceStatus, ...]
    queues: tuple[VirtualQueue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateGroup:
    """Form a group of the next `count` waiting requests of a class that no group covers."""

    id: GroupId
    cls: RequestClass
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeGroup:
    """Let a group cover `count` requests in all (pulled ones included), and seal it or not."""

    id: GroupId
    count: int
    sealed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseGroup:
    """Forget a group; requests it still covers become ungrouped."""

    id: GroupId


@dataclass(frozen=True, slots=True, kw_only=True)
class SetQueue:
    """Replace the order of one instance's virtual queue. Unknown or closed groups are left out."""

    instance: InstanceId
    groups: tuple[GroupId, ...]


PlanChange = CreateGroup | ResizeGroup | CloseGroup | SetQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueChanged:
    """The instance's virtual queue has new work or a new order: read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelAsked:
    """A request that the instance holds must end.

    Attributes:
        id: The request.
        outcome: How: cancelled, expired, or stop (a stop string appeared).
    """

    id: RequestId
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainAsked:
    """The instance must return its work and take no more."""


InstanceNotice = QueueChanged | CancelAsked | DrainAsked


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFilter:
    """Which records a listing shows; None means any."""

    state: RequestState | None = None
    model: str | None = None
    limit: int = 100


class Store(Protocol):
    """Shared state: index, groups, virtual queues, leases, output logs, results, heartbeats.

    Each method is atomic. All of it can be rebuilt from the broker and the live agents, so it is never
    the only copy of an unfinished request. Every method may raise StoreUnavailableError.
    """

    async def incarnation(self) -> int:
        """Identity of the store's content; an emptied store answers a larger number."""
        ...

    # requests

    async def enqueue(self, card: RequestCard, watcher: GatewayId | None = None) -> Enqueued:
        """Index an accepted request as waiting, unless its id is known; add the watcher either way.

        If the class's newest group is unsealed and on a virtual queue, the request joins it at once
        and the instance gets a QueueChanged; else the controller is woken.
        """
        ...

    async def record(self, id: RequestId) -> RequestRecord | None:
        """Return what is known of a request."""
        ...

    async def records(self, where: RequestFilter) -> Sequence[RequestRecord]:
        """List records, newest arrival first."""
        ...

    async def cancel(self, id: RequestId, outcome: Outcome = Outcome.CANCELLED) -> RequestRecord | None:
        """End a request that nobody runs at once, or ask the live holder of one to end it.

        Nobody runs a request that waits or whose holder is dead. The outcome asked first counts; asking
        again repeats the notice. Returns the record as it stood after the call (unchanged if it had
        ended), None if unknown.
        """
        ...

    async def expire(self, now_ns: int, limit: int = 1000) -> Sequence[RequestId]:
        """End as expired the waiting requests whose `drop_at_ns` has passed; return their ids."""
        ...

    # leases and output

    async def lease(self, card: RequestCard, holder: Holder, group: GroupId | None) -> LeaseAnswer:
        """Take the lease of a request whose message `holder` has in hand; index it if unknown.

        Granted if it waits, if its holder is dead (no heartbeat, or a newer session of that instance),
        or if `holder` itself holds it (a fresh epoch then fences its former one). A grant of a
        waiting request counts as one pull of `group`, if that group is given, of its class and not
        exhausted; one of a request unknown so far does not. A request whose end was asked for (see
        `cancel`) ends here instead, unless another holder lives.
        """
        ...

    async def append(self, entries: Sequence[LogEntry]) -> Sequence[AppendResult]:
        """Append to output logs, end requests, and announce both to their watchers, entry by entry.

        Returns one result per entry, in order. An entry with an outcome releases the lease.
        """
        ...

    async def park(self, id: RequestId, epoch: Epoch, why: str) -> bool:
        """Note that the holder has evicted the request and keeps it. False if the epoch is not current."""
        ...

    async def resume(self, id: RequestId, epoch: Epoch) -> bool:
        """Note that the holder runs a parked request again. False if the epoch is not current."""
        ...

    async def release(self, id: RequestId, epoch: Epoch, why: str) -> bool:
        """Give the lease back: the request waits again, in its place by arrival. False if not current.

        A request whose end was asked for (see `cancel`) ends instead. The epoch alone counts: the
        controller releases what a dead holder left behind.
        """
        ...

    async def reap(self) -> Sequence[RequestId]:
        """Release the leases of holders that no longer live; their requests wait again. Returns their ids."""
        ...

    async def reregister(self, card: RequestCard, holder: Holder, output: TokenIds) -> LeaseAnswer:
        """Restore a running request that the store has forgotten, with its whole output log.

        Granted if unknown, waiting, its holder is dead, or leased to `holder`; then the log becomes the
        longer of both.
        """
        ...

    async def read_output(self, id: RequestId, offset: int) -> OutputSlice | None:
        """Return the log from `offset` on, with the outcome if ended; None if the request is unknown.

        An `offset` beyond the log answers an empty slice at its end: less than asked shows the loss.
        """
        ...

    async def watch(self, id: RequestId, watcher: GatewayId) -> None:
        """Announce further output of a request to this gateway, too."""
        ...

    async def unwatch(self, id: RequestId, watcher: GatewayId) -> int:
        """Stop announcing to this gateway; return how many other watchers remain."""
        ...

    def outputs(self, watcher: GatewayId) -> AsyncIterator[Sequence[OutputSlice]]:
        """Iterate over announced output, in batches; what a request's slices hold follows in order.

        An empty batch comes first, and after each reconnect: the subscription is live, and what was
        announced before may have been missed, so read what you watch from its last offset.
        """
        ...

    # instances

    async def heartbeat(self, status: InstanceStatus, ttl_s: float) -> None:
        """Say that an instance lives; silent for `ttl_s`, it counts as dead.

        The controller is woken when something else than the load changed.
        """
        ...

    async def leave(self, holder: Holder) -> None:
        """Say that this life of the instance is over, at once."""
        ...

    async def virtual_queue(self, instance: InstanceId) -> VirtualQueue:
        """Return the groups of an instance in order, with their counts; empty if it has none."""
        ...

    async def ask_drain(self, instance: InstanceId) -> bool:
        """Ask an instance to drain; False if it is not alive."""
        ...

    def notices(self, instance: InstanceId) -> AsyncIterator[InstanceNotice]:
        """Iterate over notices to an instance. They are hints: polling must find the same.

        At the start and after each reconnect come a QueueChanged and all that still stands: cancels of
        what the present session holds, and a drain asked of it.
        """
        ...

    # planning

    async def view(self) -> ClusterView:
        """Read classes, groups, live instances and virtual queues at one moment."""
        ...

    async def apply(self, changes: Sequence[PlanChange]) -> None:
        """Apply plan changes in order, and notify each instance whose queue changed."""
        ...

    def wakeups(self) -> AsyncIterator[str]:
        """Iterate over hints that the controller has something to do, with the reason.

        The first, and the first after each reconnect, is `subscribed`.
        """
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class Journal(Protocol):
    """A durable map kept in one file, in which the embedded store keeps what must outlive a crash."""

    def load(self) -> Sequence[tuple[str, bytes]]:
        """Return all entries, in the order of their first write. Called once, before any write."""
        ...

    async def write(
        self, puts: Sequence[tuple[str, bytes]], deletes: Sequence[str] = (), *, durable: bool = False
    ) -> None:
        """Put and delete entries, atomically and in the order of the calls.

        On return they survive a kill -9 of this process and, if `durable`, a power cut.
        """
        ...


# --- the engine --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCall:
    """One generation asked of an engine.

    Attributes:
        call_id: Unique per attempt; aborts name it.
        prompt_ids: The prompt, with the tokens generated earlier appended on a resume.
        sampling: With max_tokens and min_tokens reduced accordingly.
    """

    call_id: str
    prompt_ids: TokenIds
    sampling: Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChunk:
    """Part of an engine's answer.

    Attributes:
        token_ids: New tokens.
        finish: `stop`, `length` or `abort` with the last chunk; None before.
        cached_tokens: Prompt tokens found in the prefix cache, if the engine says so.
    """

    token_ids: TokenIds
    finish: str | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """The engine's own gauges, to reconcile the agent's ledger with.

    Attributes:
        running: Requests in the batch.
        waiting: Requests in the engine's own queue; QLM keeps it empty.
        kv_usage: Share of KV blocks in use, 0 to 1.
        preemptions: Since its start.
    """

    running: int
    waiting: int
    kv_usage: float
    preemptions: int = 0


class Engine(Protocol):
    """An LLM engine that serves one model over vLLM's HTTP API."""

    def generate(self, call: EngineCall) -> AsyncIterator[EngineChunk]:
        """Generate; the last chunk has `finish`. A stream that just ends was aborted while waiting.

        Raises:
            EngineUnavailableError: The engine died or cannot be reached.
            EngineRefusedError: It refused this request for good.
        """
        ...

    async def abort(self, call_ids: Sequence[str]) -> None:
        """Ask the engine to stop generations; each stream's own end is the barrier, not this return."""
        ...

    async def capacity(self) -> EngineCapacity:
        """What it can hold."""
        ...

    async def load(self) -> EngineLoad:
        """Its gauges now; they may be stale just after an abort."""
        ...

    async def healthy(self) -> bool:
        """Whether it answers and its core is alive."""
        ...

    async def sleep(self, level: int = 1) -> None:
        """Free the accelerator, keeping weights in host memory (level 1) or nothing (level 2)."""
        ...

    async def wake(self) -> None:
        """Undo `sleep`."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...
