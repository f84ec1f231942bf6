"""Requests that cannot be in time any more make way for those that can.

A class is first come, first served. Once it is behind, whoever is next has waited too long already, and so
has everybody after: under overload a class would miss every objective and lose no time doing so. Requests
that would be late if they started now are therefore put into a class of their own (`RequestClass.late`),
which plans may serve when nothing else would be late for it.

Works on the state of `agents.protocol.AgentProtocol`.
"""

from typing import TYPE_CHECKING, Final

from qlm.agents.held import Held, Phase, Then
from qlm.agents.stopping import stop
from qlm.domain.actions import Action
from qlm.domain.group import Group, RequestClass, lead_s

if TYPE_CHECKING:
    from qlm.agents.protocol import AgentProtocol

_WEIGHT: Final = 0.05
"""Weight of the newest observation: some twenty requests ago counts a third of now."""


class Leads:
    """Seconds from the start to what an objective is about, on average, by class; 0 until one was seen."""

    def __init__(self) -> None:
        self._mean_s: dict[RequestClass, float] = {}

    def seen(self, held: Held, now_ns: int) -> None:
        """Take note of a request that has just come to what its objective is about, in its first leg."""
        cls = held.request.cls
        if held.legs == 1 and cls.due_ms is not None:
            took_s = max(0.0, (now_ns - held.started_ns) / 1e9)
            before_s = self._mean_s.get(cls, took_s)
            self._mean_s[cls] = before_s + _WEIGHT * (took_s - before_s)

    def lead_ns(self, cls: RequestClass) -> int:
        """How long before its moment a request must start to be worth starting in time."""
        takes_s = self._mean_s.get(cls, 0.0)
        return 0 if cls.due_ms is None else round(lead_s(cls.due_ms, takes_s) * 1e9)


def too_late(agent: "AgentProtocol", held: Held, now_ns: int) -> bool:
    """Whether a request that has not started would be late if it started now, and somebody else waits."""
    deadline_ns, cls = held.request.deadline_ns, held.request.cls
    if not agent.settings.demotes or deadline_ns is None or cls.late or held.output or held.parked:
        return False
    if now_ns + agent.leads.lead_ns(cls) <= deadline_ns:
        return False
    return agent.hands.fresh > 1 or agent.head.group(now_ns) is not None


def demote(agent: "AgentProtocol", held: Held, now_ns: int) -> list[Action]:
    """Let a staged request wait in its late class."""
    return stop(agent, held, Then.DEMOTE, "it cannot be in time any more, others can", now_ns)


def demote_missed(agent: "AgentProtocol", now_ns: int) -> list[Action]:
    """Demote what has missed its objective while it was evicted: it would go before all others else."""
    actions: list[Action] = []
    for held in agent.misses.pop(now_ns):
        answered = held.output and held.request.answered_by_first_token
        if held.phase is Phase.STAGED and not answered:
            actions += demote(agent, held, now_ns)
    at_ns = agent.misses.next_ns()
    if at_ns is not None:
        agent.alarm.want(at_ns)
    return actions


def must_sift(agent: "AgentProtocol", head: Group, now_ns: int) -> bool:
    """Whether requests must be pulled without a place for them, since the first ones cannot be in time.

    Nobody is evicted for a group whose first request is late, so that no place might ever come.
    """
    if not agent.settings.demotes or head.deadline_ns is None or agent.hands.fresh or agent.pulling:
        return False
    return now_ns + agent.leads.lead_ns(head.cls) > head.deadline_ns
