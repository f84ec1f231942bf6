"""Planted bugs: parts of the system, each with one promise broken, for the checkers to find."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final
from zlib import crc32

from qlm.agents.core.agent import Agent
from qlm.agents.core.costs.operation_costs import OperationCosts
from qlm.agents.core.events import Appended, Event, GenerationEnded
from qlm.agents.core.request import Disposition
from qlm.agents.core.state import AgentSettings
from qlm.domain.actions import Abort, Ack, Action, RestartEngine, Submit
from qlm.domain.fleet import InstanceStatus
from qlm.domain.ids import ControllerId, ModelId, RequestId, SessionId
from qlm.domain.leadership import Leadership, Term
from qlm.domain.lease import Epoch, Holder, InstanceHeld
from qlm.domain.output import AppendResult, LogEntry, OutputSlice
from qlm.domain.request import RequestRecord
from qlm.store.core.effects import Effects
from qlm.store.core.lifecycle import announce, end, extend
from qlm.store.core.state import State
from qlm.store.core.tables import RequestRow
from qlm.store.embedded.memory import MemoryStore
from simulation.parts import Parts, make_state
from simulation.store_server import StoreServer
from simulation.virtual_loop import EPOCH_NS


class AcksBeforeStore(Agent):
    """Acknowledges a message as soon as its generation has ended, not once the result is stored."""

    def take(self, events: Iterable[Event], now_ns: int) -> list[Action]:
        events = tuple(events)
        acks: list[Action] = []
        for event in events:
            if isinstance(event, GenerationEnded) and event.finish in ("stop", "length"):
                tracked = self.state.requests.calls.get(event.call_id)
                acks += [] if tracked is None else [Ack(delivery=tracked.claim.delivery)]
        return [*acks, *super().take(events, now_ns)]


class ChecksPointAfterAbort(Agent):
    """Parks an evicted request when it asks for the abort; what the engine still makes comes after that."""

    late: frozenset[str] = frozenset()

    def take(self, events: Iterable[Event], now_ns: int) -> list[Action]:
        kept = [e for e in events if not (isinstance(e, GenerationEnded) and e.call_id in self.late)]
        return super().take(kept, now_ns)

    def decide(self, now_ns: int) -> list[Action]:
        actions = super().decide(now_ns)
        for action in tuple(actions):
            for call_id in action.call_ids if isinstance(action, Abort) else ():
                tracked = self.state.requests.calls.get(call_id)
                if tracked is not None and tracked.exit.disposition is Disposition.RESUME_HERE:
                    ended = GenerationEnded(call_id=call_id, finish="abort")
                    actions += [*super().take((ended,), now_ns), *super().decide(now_ns)]
                    self.state.requests.calls[call_id] = tracked
                    self.late |= {call_id}
        return actions


class ChecksNoEpoch(StoreServer):
    """Accepts every entry that begins at the end of the log, under any lease or none."""

    async def append(self, entries: Sequence[LogEntry]) -> Sequence[AppendResult]:
        effects = Effects()
        return await self._commit(([self._appended(entry, effects) for entry in entries], effects))

    def _appended(self, entry: LogEntry, effects: Effects) -> AppendResult:
        row, now_ns = self._state.requests.get(entry.id), self._clock.now_ns()
        if row is None:
            return AppendResult.UNKNOWN
        if row.outcome is not None:
            return AppendResult.ENDED
        if entry.offset != len(row.log):
            return AppendResult.GAP
        if entry.token_ids:
            extend(row, entry.token_ids, now_ns, effects)
        if entry.outcome is not None:
            end(self._state, row, entry.outcome, entry.detail, now_ns, effects, entry.token_ids)
        elif entry.token_ids:
            announce(row, entry.token_ids, effects)
        return AppendResult.TAKEN


class LetsEverybodyLead(StoreServer):
    """Grants leadership to every controller that asks, and lets all of them plan."""

    async def acquire_leadership(self, name: ControllerId, ttl_s: float) -> Leadership:
        leadership = await super().acquire_leadership(name, ttl_s)
        return Leadership(leader=name, term=leadership.term, since_ns=leadership.since_ns)

    def _check_term(self, term: Term | None) -> None:
        """Accept every term."""


class LetsEverybodyServe(StoreServer):
    """Gives the lease of an instance to each session that sends a heartbeat, whoever has it."""

    async def heartbeat(
        self, status: InstanceStatus, ttl_s: float, replaces: SessionId | None = None
    ) -> InstanceHeld | None:
        present = self._state.instances.get(status.id)
        former = None if present is None else present.status.holder.session
        return await super().heartbeat(status, ttl_s, former)


class LosesEnds(StoreServer):
    """Acknowledges the end of a request without storing it, for one request in thirty."""

    async def append(self, entries: Sequence[LogEntry]) -> Sequence[AppendResult]:
        lost = [entry.outcome is not None and crc32(entry.id.encode()) % 30 == 0 for entry in entries]
        kept = [entry for entry, is_lost in zip(entries, lost, strict=True) if not is_lost]
        results = iter(await super().append(kept))
        return [AppendResult.TAKEN if is_lost else next(results) for is_lost in lost]


class WatchesNothing(Agent):
    """Has no watchdog: an engine that stands still is given up only when its process ends."""

    def __init__(
        self,
        holder: Holder,
        accelerator: str,
        models: Sequence[ModelId],
        settings: AgentSettings,
        costs: OperationCosts,
    ) -> None:
        blind = replace(settings, watch=replace(settings.watch, silence_s=0.0))
        super().__init__(holder, accelerator, models, blind, costs)


class RepeatsToken(Agent):
    """Forgets the last token of an answer that it resumes after its engine was restarted."""

    restarted = False

    def take(self, events: Iterable[Event], now_ns: int) -> list[Action]:
        return self._seen(super().take(events, now_ns))

    def decide(self, now_ns: int) -> list[Action]:
        return self._seen(super().decide(now_ns))

    def _seen(self, actions: list[Action]) -> list[Action]:
        self.restarted |= any(isinstance(action, RestartEngine) for action in actions)
        return [self._shortened(each) if isinstance(each, Submit) else each for each in actions]

    def _shortened(self, submit: Submit) -> Submit:
        call = submit.call
        tracked = self.state.requests.calls[call.call_id]
        if not (self.restarted and tracked.output):
            return submit
        return replace(submit, call=replace(call, prompt_ids=call.prompt_ids[:-1]))


class TakesErrorsForAnswers(Agent):
    """Goes on after a failed write to the output log as if the store had taken it."""

    def take(self, events: Iterable[Event], now_ns: int) -> list[Action]:
        return super().take([_as_taken(event) for event in events], now_ns)


def _as_taken(event: Event) -> Event:
    if isinstance(event, Appended) and event.results is None:
        return replace(event, results=(AppendResult.TAKEN,) * len(event.entries))
    return event


class FirstIncarnations(dict[RequestId, RequestRow]):
    """Rows whose incarnations are all the same: the next row of a lost one has its epochs again."""

    def __setitem__(self, id: RequestId, row: RequestRow) -> None:
        row.epoch = Epoch(EPOCH_NS, 0)
        super().__setitem__(id, row)


def forgetful_state(incarnation: int) -> State:
    """Make a state that counts leases anew after each loss."""
    state = make_state(incarnation)
    state.requests = FirstIncarnations()
    return state


class TakesLostLogsForEmpty(StoreServer):
    """Gives out an answer whose log was lost as one without tokens."""

    async def read_output(self, id: RequestId, offset: int) -> OutputSlice | None:
        return await MemoryStore.read_output(self, id, offset)

    def _reported(self, record: RequestRecord) -> RequestRecord:
        return record


PLANTED: Final = MappingProxyType(
    {
        "ack before store": Parts(make_agent=AcksBeforeStore),
        "no epoch check": Parts(make_store=ChecksNoEpoch),
        "checkpoint after abort": Parts(make_agent=ChecksPointAfterAbort),
        "epoch reset by a loss": Parts(make_state=forgetful_state),
        "two leaders": Parts(make_store=LetsEverybodyLead),
        "two agents of an instance": Parts(make_store=LetsEverybodyServe),
        "a lost done record": Parts(make_store=LosesEnds),
        "no watchdog": Parts(make_agent=WatchesNothing),
        "a token repeated after a hang": Parts(make_agent=RepeatsToken),
        "a store error not waited out": Parts(make_agent=TakesErrorsForAnswers),
        "a lost log taken for an empty one": Parts(make_store=TakesLostLogsForEmpty),
    }
)
"""Each bug, and the parts that have it."""
