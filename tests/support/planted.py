"""Planted bugs: parts of the system, each with one promise broken, for the checkers to find."""

from collections.abc import Iterable
from types import MappingProxyType
from typing import Final
from zlib import crc32

from qlm.agents.events import Event, GenerationEnded
from qlm.agents.held import Then
from qlm.agents.protocol import AgentProtocol
from qlm.domain.actions import Abort, Ack, Action
from qlm.domain.ids import ControllerId
from qlm.domain.leadership import Leadership, Term
from qlm.domain.output import AppendResult, LogEntry
from qlm.domain.request import RequestState
from qlm.simulator.system.parts import Parts, make_core
from qlm.simulator.system.virtual_loop import EPOCH_NS
from qlm.store.core import StoreCore
from qlm.store.effects import Effects
from qlm.store.tables import RequestRow


class AcksBeforeStore(AgentProtocol):
    """Acknowledges a message as soon as its generation has ended, not once the result is stored."""

    def receive_all(self, events: Iterable[Event], now_ns: int) -> list[Action]:
        events = tuple(events)
        acks: list[Action] = []
        for event in events:
            if isinstance(event, GenerationEnded) and event.finish in ("stop", "length"):
                held = self.calls.get(event.call_id)
                acks += [] if held is None else [Ack(delivery=held.delivery)]
        return [*acks, *super().receive_all(events, now_ns)]


class ChecksPointAfterAbort(AgentProtocol):
    """Parks an evicted request when it asks for the abort; what the engine still makes comes after that."""

    late: set[str]

    def receive_all(self, events: Iterable[Event], now_ns: int) -> list[Action]:
        if not hasattr(self, "late"):
            self.late = set()
        kept = [e for e in events if not (isinstance(e, GenerationEnded) and e.call_id in self.late)]
        actions = super().receive_all(kept, now_ns)
        for action in tuple(actions):
            for call_id in action.call_ids if isinstance(action, Abort) else ():
                held = self.calls.get(call_id)
                if held is not None and held.then is Then.PARK:
                    ended = GenerationEnded(call_id=call_id, finish="abort")
                    actions += super().receive_all((ended,), now_ns)
                    self.calls[call_id] = held
                    self.late.add(call_id)
        return actions


class ChecksNoEpoch(StoreCore):
    """Takes every entry that begins where the log ends, under whatever lease."""

    def _append_refusal(self, row: RequestRow, entry: LogEntry) -> AppendResult | None:
        if row.state is RequestState.ENDED:
            return AppendResult.ENDED
        return None if entry.offset == len(row.log) else AppendResult.GAP


class LetsEverybodyLead(StoreCore):
    """Gives the lead to whoever asks, and lets all of them plan."""

    def lead(self, name: ControllerId, ttl_s: float, now_ns: int) -> tuple[Leadership, Effects]:
        leadership, effects = super().lead(name, ttl_s, now_ns)
        return Leadership(leader=name, term=leadership.term, since_ns=leadership.since_ns), effects

    def check_term(self, term: Term | None, now_ns: int) -> None:
        """Refuse nobody."""


class LosesEnds(StoreCore):
    """Says that it has noted the end of a request, and has not, for one request in thirty."""

    def _append(self, entry: LogEntry, now_ns: int, effects: Effects) -> AppendResult:
        if entry.outcome is not None and crc32(entry.id.encode()) % 30 == 0:
            return AppendResult.TAKEN
        return super()._append(entry, now_ns, effects)


PLANTED: Final = MappingProxyType(
    {
        "ack before store": Parts(make_agent=AcksBeforeStore),
        "no epoch check": Parts(make_core=ChecksNoEpoch),
        "checkpoint after abort": Parts(make_agent=ChecksPointAfterAbort),
        "epoch reset by a flush": Parts(make_core=lambda incarnation: make_core(EPOCH_NS)),
        "two leaders": Parts(make_core=LetsEverybodyLead),
        "a lost done record": Parts(make_core=LosesEnds),
    }
)
"""Each bug, and the parts that have it."""
