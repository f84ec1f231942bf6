"""Per-request state of the agent, from pull to completion or return."""

from dataclasses import replace
from enum import Enum, IntEnum, auto
from typing import Final

from qlm.agents.batching.call_objective import call_objective
from qlm.agents.core.output.scores import Scores, scores_of
from qlm.domain.actions import Demote, Return
from qlm.domain.ids import GroupId, RequestId
from qlm.domain.lease import Epoch
from qlm.domain.outcome import Outcome
from qlm.domain.ports.broker import Delivery
from qlm.domain.ports.engine import EngineCall
from qlm.domain.request import Request
from qlm.domain.sampling import Evictability
from qlm.domain.urgency import service_order

PREEMPTIONS_MAX: Final = 4
"""Preemptions of one request over its whole life, by all agents; a limit, so that every request finishes."""


class Phase(IntEnum):
    """Phases of a tracked request, changed by `lifecycle` only. Numbered from 0, as an index."""

    LEASING = 0
    """The message was pulled; the store has not yet granted the lease."""
    READY = 1
    """Leased, waiting for a batch slot: new, or preempted."""
    RUNNING = 2
    """Generating."""
    ABORTING = 3
    """The engine was asked to stop it; the end of its stream is awaited."""
    CLOSING = 4
    """No longer generating; its last tokens or its outcome are not yet in the output log."""


GENERATING: Final = (Phase.RUNNING, Phase.ABORTING)
"""Phases in which a request occupies the engine."""


class Disposition(Enum):
    """Next step of a request whose generation has ended and whose tokens are logged."""

    RESUME_HERE = auto()
    """Wait on this agent for another batch slot."""
    RETURN = auto()
    """Go back to its class queue, for any agent."""
    EVICT = auto()
    """Go back to its class queue, evicted for a model swap."""
    DEMOTE = auto()
    """Go back to the queue of its demoted class."""
    SET_BACK = auto()
    """Go back to the queue of its demoted class, evicted."""
    END = auto()
    """End with an outcome."""


class Claim:
    """Claim of the agent on a request: the delivery of the broker and the lease of the store.

    Attributes:
        delivery: The unacknowledged message.
        delivered_ns: Its receipt or last renewal.
        group: The group it was pulled for; None if it came from the hold queue.
        epoch: Epoch of the lease; None until the store has granted it.
        writing: A write to the output log under this lease has not been answered yet.
        sent_at_check: Tokens sent to the output log by the latest check of its lease; -1 before the first.
    """

    __slots__ = ("delivered_ns", "delivery", "epoch", "group", "sent_at_check", "writing")

    def __init__(self, delivery: Delivery, delivered_ns: int, group: GroupId | None) -> None:
        self.delivery = delivery
        self.delivered_ns = delivered_ns
        self.group = group
        self.epoch: Epoch | None = None
        self.writing = False
        self.sent_at_check = -1


class Exit:
    """Decision on how a request leaves the engine or the agent; written by `lifecycle` only.

    Attributes:
        disposition: Its next step after the end of its generation; None while nothing is decided.
        outcome: Its outcome with disposition END.
        why: The reason, for the event history.
        sent: The log entry with the outcome was sent to the store; written by `output.log`.
    """

    __slots__ = ("disposition", "outcome", "sent", "why")

    def __init__(self) -> None:
        self.disposition: Disposition | None = None
        self.outcome: Outcome | None = None
        self.why = ""
        self.sent = False


class Generation:
    """The current generation of a request on this agent's engines, and the number of those before.

    Attributes:
        call_id: Engine call of the current generation.
        count: Generations started here.
        preemptions: Preemptions so far, here and elsewhere.
        losses: Engines that failed under it so far, here and elsewhere.
        stopgap: It was begun in a visit that may not last until its end.
        unrecorded: The output log does not have the latest of these numbers yet.
        started_ns: Submission of the current generation.
        aborted_ns: Last abort sent to the engine.
        preempted: The request is READY after a preemption, and the store knows.
        swapped_out: Its KV cache was in host memory when it was last preempted.
        swapped_in: The current generation loaded the KV cache of the previous one from host memory.
        kv_meter: The work meter of the engine of the current generation, compared by identity only.
        kv_written: Tokens which that engine had written when the generation began.
        cached_tokens: Prompt tokens found in the prefix cache by the engine that began the answer; None if it
            did not report them, or began elsewhere.
        scores: Log probabilities of its tokens; None if none are wanted.
    """

    __slots__ = (
        "aborted_ns", "cached_tokens", "call_id", "count", "kv_meter", "kv_written", "losses",
        "preempted", "preemptions", "scores", "started_ns", "stopgap", "swapped_in", "swapped_out",
        "unrecorded",
    )  # fmt: skip

    def __init__(self, scores: Scores | None) -> None:
        self.call_id = ""
        self.count = 0
        self.preemptions = 0
        self.losses = 0
        self.unrecorded = False
        self.stopgap = False
        self.started_ns = 0
        self.aborted_ns = 0
        self.preempted = False
        self.swapped_out = False
        self.swapped_in = False
        self.kv_meter: object = None
        self.kv_written = 0
        self.cached_tokens: int | None = None
        self.scores = scores


class TrackedRequest:
    """A request that the agent has pulled. What each token changes is kept in flat slots.

    Attributes:
        id: Of `request`.
        best_effort: It has no objective, or missed it and was demoted.
        urgency: Sort key: priority, deadline of its class (none is last), arrival.
        order: Position in the order of pulls.
        output: All output tokens, those of earlier generations included.
        sent: Output tokens sent to the store, confirmed or not.
        logged: Output tokens confirmed by the store.
        resumed_at: Output tokens when the current generation was submitted.
        blocks: KV blocks that the ledger counts for it; 0 unless it generates.
        spare_tokens: Tokens that still fit into these blocks.
    """

    __slots__ = (
        "best_effort", "blocks", "claim", "exit", "generation", "id", "logged", "order", "output", "phase",
        "request", "resumed_at", "sent", "spare_tokens", "urgency",
    )  # fmt: skip

    def __init__(
        self, request: Request, *, delivery: Delivery, delivered_ns: int, group: GroupId | None
    ) -> None:
        self.request = request
        self.id: RequestId = request.id
        self.claim = Claim(delivery, delivered_ns, group)
        self.phase = Phase.LEASING
        self.exit = Exit()
        self.generation = Generation(scores_of(request.extensions))
        self.output: list[int] = []
        self.sent = 0
        self.logged = 0
        self.resumed_at = 0
        self.blocks = 0
        self.spare_tokens = 0
        self.order = 0
        cls, arrival_ns = request.cls, request.arrival_ns
        self.best_effort = cls.due_ms is None
        # The deadline of the class, as groups use it: by its own, looser deadline a request would be sorted
        # behind the next group of its class.
        deadline_ns = None if cls.due_ms is None else arrival_ns + round(cls.due_ms * 1_000_000)
        self.urgency = service_order(cls.priority, deadline_ns, arrival_ns)

    def count_preemption(self) -> None:
        """Count one more preemption; its number goes into the output log before the request leaves."""
        self.generation.preemptions += 1
        self.generation.unrecorded = True

    def count_loss(self) -> int:
        """Count one more engine that failed under it, in the same way; return their number."""
        self.generation.losses += 1
        self.generation.unrecorded = True
        return self.generation.losses

    def generated_from_cache(self, cached_tokens: int) -> None:
        """Note what an engine found of the prompt; a later generation also finds tokens of this request."""
        if self.generation.count == 1 and not self.resumed_at:
            self.generation.cached_tokens = min(self.request.prompt_tokens, max(0, cached_tokens))

    @property
    def tokens(self) -> int:
        """Prompt plus output tokens, which is the size of its KV cache."""
        return self.request.prompt_tokens + len(self.output)

    @property
    def tokens_left(self) -> int:
        """Output tokens until its own limit."""
        return self.request.sampling.max_tokens - len(self.output)

    @property
    def pinned(self) -> bool:
        """True if it cannot be resumed exactly, and is generated again from its prompt instead."""
        return self.request.evictability is Evictability.PINNED

    @property
    def ended(self) -> bool:
        """True if its outcome is decided."""
        return self.exit.disposition is Disposition.END

    @property
    def answered(self) -> bool:
        """True if its objective concerns the first token only, and that was generated."""
        return bool(self.output) and self.request.answered_by_first_token

    @property
    def decided(self) -> bool:
        """True if nothing changes any more whether it meets its objective."""
        return bool(self.output) and self.request.decided_by_first_token

    @property
    def preemptible(self) -> bool:
        """True if it can be resumed exactly and was not preempted too often."""
        return not self.pinned and self.generation.preemptions < PREEMPTIONS_MAX

    def finished_by_log(self) -> Outcome | None:
        """Return the outcome that the logged output implies, if an earlier generation already finished."""
        sampling = self.request.sampling
        if len(self.output) > sampling.min_tokens and sampling.ends_with(self.output[-1]):
            return Outcome.STOP
        return Outcome.LENGTH if len(self.output) >= sampling.max_tokens else None

    def next_call(self, *, for_policy: bool, seeds: bool = True) -> EngineCall:
        """Build the generation that continues the output: prompt plus output, limits reduced.

        If it cannot be resumed exactly, it begins with the prompt alone (`output.replay`).

        Args:
            for_policy: The engine's batch policy asks for the objective.
            seeds: If it cannot be resumed and its tokens are drawn, give it a seed to be repeatable.
        """
        done, generation = 0 if self.pinned else len(self.output), self.generation
        sampling = self.request.sampling
        if self.pinned and seeds:
            sampling = sampling.repeatable(self.id)
        extensions, scores = self.request.extensions, generation.scores
        # What an agent knows of the prompt is logged with the first tokens.
        scored = bool(self.output) or (scores is not None and scores.prompt is not None)
        generation.count += 1
        epoch = self.claim.epoch or Epoch(0, 0)
        generation.call_id = f"{self.id}-{epoch.incarnation:x}-{epoch.n}-{generation.count}"
        return EngineCall(
            call_id=generation.call_id,
            prompt_ids=(*self.request.prompt_ids, *self.output) if done else self.request.prompt_ids,
            sampling=sampling.after(done),
            traceparent=self.request.traceparent,
            objective=call_objective(self.request, done) if for_policy else None,
            logprobs=extensions.logprobs,
            prompt_logprobs=None if scored else extensions.prompt_logprobs,
        )

    def to_queue(self, epoch: Epoch | None, why: str, *, evicted: bool = False) -> Return:
        """Build the return of the message, and of the lease if `epoch` is still valid."""
        home = self.request.cls.queue
        delivery = self.claim.delivery
        return Return(id=self.id, epoch=epoch, delivery=delivery, home=home, why=why, evicted=evicted)

    def to_demoted_class(self, epoch: Epoch, *, evicted: bool) -> Demote:
        """Build the return of message and lease to the queue of the demoted class."""
        request = replace(self.request, cls=self.request.cls.missed())
        delivery = self.claim.delivery
        return Demote(request=request, epoch=epoch, delivery=delivery, why=self.exit.why, evicted=evicted)


def pace_of(request: Request) -> float:
    """Return the tokens per second at which an answer is read; 0 without a reader, and for late requests.

    It is that of the class, by which messages are pulled and plans are made: at most the request's own.
    """
    return request.cls.tokens_per_s or 0.0
