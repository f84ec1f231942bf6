"""The agent of one LLM serving instance, as a sans-I/O state machine: events in, actions out.

It turns the order of the virtual queue into LLM serving operations and keeps every promise about
leases, the output log and acknowledgements. It owns no clock, thread or connection: asyncio, Ray and
the simulator feed it events and carry out its actions (`agents.interpreter`).

Life of a request here: pulled -> leasing -> staged -> running -> closing -> gone, with running ->
aborting -> staged for an eviction. Order at the end, always: abort -> last tokens in the log -> result
stored -> message acknowledged.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from qlm.agents import custody, log_writer, serving, stopping, warming
from qlm.agents.batch_limit import BatchLimit
from qlm.agents.events import (
    Appended,
    Decisive,
    EngineChanged,
    EngineProbed,
    Event,
    GenerationEnded,
    HeldAhead,
    LeaseAnswered,
    Progress,
    Pulled,
    QueueRead,
    Tick,
)
from qlm.agents.eviction import Candidates, Pace
from qlm.agents.hands import Hands
from qlm.agents.head import QueueHead
from qlm.agents.held import Held, Phase, Then
from qlm.agents.lateness import Leads
from qlm.agents.log_writer import Unwritten
from qlm.agents.losing import give_up_calls, lost
from qlm.agents.operation_costs import OperationCosts
from qlm.agents.tally import OperationTally
from qlm.agents.timers import Alarm, DueTimes
from qlm.agents.warming import Ahead
from qlm.agents.work import WorkMeter
from qlm.domain.actions import Action, Drained
from qlm.domain.fleet import EngineCapacity, EngineState, InstanceStatus, ServedWork
from qlm.domain.ids import GroupId, ModelId, RequestId
from qlm.domain.lease import Holder
from qlm.domain.notices import CancelAsked, DrainAsked
from qlm.domain.operations import SwapTier
from qlm.domain.outcome import Outcome

NO_COSTS: Final = OperationCosts()

FAILED_PAUSE_NS: Final = 5_000_000_000
"""A failed engine is started again no sooner than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """What an operator may change about an agent.

    Attributes:
        append_interval_s: Shortest time between two writes to the output log.
        custody_s: Age at which custody of a message is renewed; under half the broker's
            acknowledgement timeout (30 minutes by default).
        pull_max: Requests asked for in one pull.
        swap_after_s: How long a group of another model must have been first before the model is swapped;
            longer than a re-plan takes, so that a new plan can still keep the present model.
        swap_idle_s: For work that can wait the model is swapped only when no request with a deadline has
            started for so long, or for two swaps if they take longer (`agents.head.Stay`); 0 for at once.
        retry_s: Pause before the store is tried again.
        evicts: Running requests make room for more urgent ones; else they always run to their end.
        demotes: Requests that would be late if they started now make way for others (`agents.lateness`).
        limits_batch: Batch work waits while those that run need a faster pace (`agents.batch_limit`).
        warms_ahead: Models later in the virtual queue are brought into host memory (`agents.warming`).
    """

    append_interval_s: float = 0.02
    custody_s: float = 600.0
    pull_max: int = 16
    swap_after_s: float = 0.1
    swap_idle_s: float = 4.0
    retry_s: float = 0.2
    evicts: bool = True
    demotes: bool = True
    limits_batch: bool = False
    warms_ahead: bool = True


class AgentProtocol:
    """State of one agent. Call `receive` with each event; carry out the actions it returns, in order.

    It decides in three parts that share its attributes: `serving` (what runs next, with `swapping` and
    `stopping`), `log_writer` (the output log) and `custody` (messages and leases). From outside only
    `receive` and `receive_all` change it. An event costs about the same for any number of requests in hand.
    """

    def __init__(
        self,
        holder: Holder,
        accelerator: str,
        models: Sequence[ModelId],
        settings: AgentSettings,
        costs: OperationCosts = NO_COSTS,
    ) -> None:
        self.holder: Final = holder
        self.accelerator: Final = accelerator
        self.models: Final = tuple(models)
        self.settings: Final = settings
        self.costs: Final = costs
        self.retry_ns: Final = round(settings.retry_s * 1e9)
        self.append_interval_ns: Final = round(settings.append_interval_s * 1e9)
        self.hands: Final = Hands()
        self.held: Final = self.hands.held
        self.calls: dict[str, Held] = {}
        self.head: Final = QueueHead(holder.instance, self.models)
        self.failed_until_ns: Final = self.head.failed_until_ns
        self.head_since: tuple[GroupId, int] | None = None
        # when work with a deadline last started; its priority and model
        self.timed: tuple[int, int, ModelId] | None = None
        self.pulling: int = 0
        self.engines: dict[ModelId, EngineState] = dict.fromkeys(self.models, EngineState.COLD)
        self.swap_ns: dict[ModelId, int] = costs.swap_ns(self.engines)
        self.capacity: EngineCapacity | None = None
        self.active: ModelId | None = None
        self.swapping_to: ModelId | None = None
        self.errors: dict[ModelId, str] = {}
        self.suspect = False
        self.probe_after_ns: int | None = 0
        self.pace = Pace()
        self.candidates: Final = Candidates(self.hands.running)
        self.work = WorkMeter()
        self.batch_limit: Final = BatchLimit()
        self.unwritten: Final = Unwritten()
        self.unregistered: set[RequestId] = set()
        self.reregister_after_ns = 0
        self.renew_after_ns = 0
        self.drops: Final = DueTimes(self._may_still_drop)
        self.leads: Final = Leads()
        self.ahead: Final = Ahead()
        self.tally: Final = OperationTally()
        self.first_tokens: list[Held] = []
        self.late_aborts: Final = DueTimes(self._still_aborting)
        self.alarm: Final = Alarm()
        self.draining = False
        self.drained = False

    def receive(self, event: Event, now_ns: int) -> list[Action]:
        """Take one event and return what to do, in order.

        Args:
            event: What happened.
            now_ns: When, nanoseconds since the epoch.
        """
        return self.receive_all((event,), now_ns)

    def receive_all(self, events: Iterable[Event], now_ns: int) -> list[Action]:
        """Take the events of one moment, and decide once what follows from them all.

        Args:
            events: What happened, in order.
            now_ns: When, nanoseconds since the epoch.
        """
        actions: list[Action] = []
        decisive = False
        for event in events:
            if isinstance(event, Progress):
                self._progress(event)
            else:
                actions += self._handle(event, now_ns)
                decisive = True
        if self.first_tokens:
            self._answered(now_ns)
        if decisive:
            # Tokens alone never make room; deciding nothing keeps the cost of a token low.
            actions += serving.serve(self, now_ns)
            if self.ahead.stale:
                actions += warming.look_ahead(self, now_ns)
            self.tally.seen(now_ns)
        actions += log_writer.flush(self, now_ns)
        if self.unregistered:
            actions += custody.reregistrations(self, now_ns)
        if now_ns >= self.renew_after_ns:
            actions += custody.renewals(self, now_ns)
        self.work.observe(self.hands.kv.in_batch, now_ns)
        if self.draining and not self.held and not self.pulling and not self.drained:
            self.drained = True
            actions.append(Drained())
        actions += self.alarm.actions()
        return actions

    def status(self) -> InstanceStatus:
        """What the instance says of itself with a heartbeat, as of the last event."""
        return InstanceStatus(
            holder=self.holder,
            accelerator=self.accelerator,
            models=self.models,
            active_model=self.active,
            engines=tuple(self.engines.items()),
            capacity=self.capacity,
            running=self.hands.kv.in_batch,
            parked=self.hands.staged,
            staged=self.hands.staged_work(),
            answers=self.hands.open_answers(),
            kv_used_tokens=self.hands.kv.tokens,
            work=ServedWork() if self.active is None else self.work.work(),
            operations=self.tally.stats(),
            draining=self.draining,
            error="; ".join(f"{model}: {why}" for model, why in sorted(self.errors.items())),
        )

    def _handle(self, event: Decisive, now_ns: int) -> list[Action]:  # noqa: C901 - one flat table of events
        match event:
            case QueueRead(queue=queue):
                # Messages in hand whose lease is still being taken are not yet counted as pulled there.
                self.head.read(queue, (held.group for held in self.hands.leasing.values()))
                self.ahead.changed()
                return []
            case Pulled():
                return custody.pulled(self, event, now_ns)
            case LeaseAnswered():
                return custody.lease_answered(self, event, now_ns)
            case GenerationEnded():
                self._generation_ended(event, now_ns)
                return []
            case Appended():
                return log_writer.appended(self, event, now_ns)
            case EngineChanged():
                return self._engine_changed(event, now_ns)
            case HeldAhead():
                self.ahead.told(event)
                self.tally.warmed(event, now_ns)
                return []
            case EngineProbed(healthy=healthy):
                self.suspect = self.suspect and not healthy
                self.probe_after_ns = now_ns + self.retry_ns
                return []
            case CancelAsked(id=id, outcome=outcome):
                return stopping.end(self, id, outcome, "asked to end", now_ns)
            case DrainAsked():
                self.draining = True
                return stopping.give_all_back(self, "draining", now_ns)
            case Tick():
                self.alarm.rang()
                return []
            case _:
                assert_never(event)

    def _progress(self, event: Progress) -> None:
        """Take tokens in. Nothing happens more often: what most chunks need is done in the loop itself."""
        calls, kv, unwritten = self.calls, self.hands.kv, self.unwritten
        block_tokens = kv.block_tokens
        came = blocks = 0
        for call_id, token_ids in event.chunks:
            held = calls.get(call_id)
            if held is None:
                continue
            output = held.output
            if len(output) == held.sent:
                unwritten.grown(held)
            if len(output) == held.resumed_at:
                self.first_tokens.append(held)
            output += token_ids
            tokens = len(token_ids)
            came += tokens
            spare_tokens = held.spare_tokens - tokens
            if spare_tokens < 0:
                taken = -(spare_tokens // block_tokens)
                spare_tokens += taken * block_tokens
                held.blocks += taken
                blocks += taken
            held.spare_tokens = spare_tokens
        kv.tokens += came
        kv.blocks += blocks
        self.work.output_tokens += came

    def _answered(self, now_ns: int) -> None:
        for held in self.first_tokens:
            if held.resumed_at:
                self.tally.resumed(held, now_ns)
            elif held.request.answered_by_first_token:
                self.leads.seen(held, now_ns)
        self.first_tokens.clear()

    def _generation_ended(self, event: GenerationEnded, now_ns: int) -> None:
        held = self.calls.pop(event.call_id, None)
        if held is None:
            return
        intended = held.phase
        self.hands.move(held, Phase.CLOSING)
        self.work.stopped(held)
        if event.finish in ("stop", "length"):
            # An end that overtook our abort is an end: the answer is complete.
            self.pace = self.pace.seen(
                tokens=len(held.output), elapsed_s=max(0.0, (now_ns - held.started_ns) / 1e9)
            )
            self.work.completed(held)
            self.batch_limit.ended(held)
            self.tally.ended += 1
            if not held.request.answered_by_first_token:
                self.leads.seen(held, now_ns)
            asked = held.outcome if held.then is Then.END else None
            held.then, held.outcome = Then.END, asked or Outcome(event.finish)
        elif event.finish == "refused":
            held.then, held.outcome = Then.END, Outcome.FAILED
            held.why = f"the engine refused it: {event.detail}"
        elif event.finish == "lost":
            self.suspect = self.active is not None
            lost(held, event.detail)
        elif intended is not Phase.ABORTING or held.then is None:
            lost(held, "aborted by the engine")
        self.unwritten.touch(held)

    def _engine_changed(self, event: EngineChanged, now_ns: int) -> list[Action]:
        self.engines[event.model] = event.state
        self.swap_ns = self.costs.swap_ns(self.engines)
        self.head.changed()
        self.ahead.changed(memory=True)
        if event.model == self.swapping_to and event.state in (EngineState.AWAKE, EngineState.FAILED):
            self.swapping_to = None
            up = event.state is EngineState.AWAKE
            self.tally.swapped(event.tier or SwapTier.COLD if up else None, now_ns)
        if event.state is EngineState.AWAKE:
            self.active, self.capacity = event.model, event.capacity
            if event.capacity is not None:
                self.hands.resize(event.capacity)
            self.work = WorkMeter(now_ns)
            self.batch_limit.awake(now_ns)
            self.errors.pop(event.model, None)
            self.suspect = False
            self.failed_until_ns.pop(event.model, None)
        elif event.model == self.active:
            self.active, self.capacity = None, None
            self.suspect = False
        if event.state is not EngineState.FAILED:
            return []
        self.errors[event.model] = event.error.partition("\n")[0]
        self.failed_until_ns[event.model] = now_ns + FAILED_PAUSE_NS
        return give_up_calls(self, event.model, event.error)

    def _may_still_drop(self, held: Held, at_ns: int) -> bool:
        return self.held.get(held.request.id) is held and not held.ended

    def _still_aborting(self, held: Held, at_ns: int) -> bool:
        aborting = self.hands.aborting.get(held.request.id) is held
        return aborting and held.aborted_ns + stopping.ABORT_AGAIN_NS == at_ns
