"""Requests that cannot be in time any more make way for those that can.

A class is first come, first served. Once it is behind, whoever is next has waited too long already, and so
has everybody after: under overload a class would miss every objective and lose no time doing so. Requests
that would be late if they started now are therefore put into a class of their own (`RequestClass.late`),
which plans may serve when nothing else would be late for it.

Works on the state of `agents.protocol.AgentProtocol`.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from qlm.agents.held import Held, Then
from qlm.agents.stopping import stop
from qlm.domain.actions import Action
from qlm.domain.group import Group, RequestClass, lead_s

if TYPE_CHECKING:
    from qlm.agents.protocol import AgentProtocol

_WEIGHT_MIN: Final = 0.05
"""Weight of the newest observation at least: some twenty requests ago counts a third of now."""

_DOUBT: Final = 3
"""Before anything was seen, starting takes no time, with the weight of so many observations."""


class Leads:
    """Seconds from the start to what an objective is about, on average, by class."""

    def __init__(self) -> None:
        self._mean_s: dict[RequestClass, float] = {}
        self._count: dict[RequestClass, int] = {}

    def seen(self, held: Held, now_ns: int) -> None:
        """Take note of a request that has just come to what its objective is about, in its first leg."""
        if held.legs != 1:
            return
        # Late ones tell as much, and more: a class all of which is demoted would never learn otherwise.
        cls = held.request.cls
        if cls.late:
            cls = replace(cls, late=False)
        took_s = max(0.0, (now_ns - held.started_ns) / 1e9)
        count = self._count[cls] = self._count.get(cls, 0) + 1
        before_s = self._mean_s.get(cls, 0.0)
        self._mean_s[cls] = before_s + max(_WEIGHT_MIN, 1 / (count + _DOUBT)) * (took_s - before_s)

    def lead_ns(self, cls: RequestClass) -> int:
        """How long before its moment a request must start to be worth starting in time."""
        takes_s = self._mean_s.get(cls, 0.0)
        return 0 if cls.due_ms is None else round(lead_s(cls.due_ms, takes_s) * 1e9)


def too_late(agent: "AgentProtocol", held: Held, now_ns: int) -> bool:
    """Whether a request that waits for room would be late if it started now, and somebody else waits.

    One that has begun is not given up before its moment: less is left to do than for others of its class.
    """
    deadline_ns, cls = held.request.deadline_ns, held.request.cls
    answered = held.output and held.request.answered_by_first_token
    if not agent.settings.demotes or deadline_ns is None or cls.late or answered:
        return False
    if now_ns + (0 if held.output else agent.leads.lead_ns(cls)) <= deadline_ns:
        return False
    return len(agent.hands.leasing) > 0 or agent.hands.staged > 1 or agent.head.group(now_ns) is not None


def demote(agent: "AgentProtocol", held: Held, now_ns: int) -> list[Action]:
    """Let a staged request wait in its late class."""
    return stop(agent, held, Then.DEMOTE, "it cannot be in time any more, others can", now_ns)


def must_sift(agent: "AgentProtocol", head: Group, now_ns: int) -> bool:
    """Whether requests must be pulled without a place for them, since the first ones cannot be in time.

    Nobody is evicted for a group whose first request is late, so that no place might ever come.
    """
    if not agent.settings.demotes or head.deadline_ns is None or agent.hands.fresh or agent.pulling:
        return False
    return now_ns + agent.leads.lead_ns(head.cls) > head.deadline_ns
