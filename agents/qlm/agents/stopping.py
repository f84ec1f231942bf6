"""How an agent stops requests: on demand, at their deadline, or to give them back.

Works on the state of `agents.protocol.AgentProtocol`.
"""

from typing import TYPE_CHECKING, Final

from qlm.agents.held import GENERATING, Held, Phase, Then
from qlm.agents.kv_swap import kept_in_host
from qlm.domain.actions import Abort, Action
from qlm.domain.ids import RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.sampling import Evictability

if TYPE_CHECKING:
    from qlm.agents.protocol import AgentProtocol

ABORT_AGAIN_NS: Final = 1_000_000_000
"""An abort without effect is repeated after this."""


def park(agent: "AgentProtocol", held: Held, what_for: str, now_ns: int) -> list[Action]:
    """Evict a running request, or swap it out if its KV cache stays in host memory; it goes on here later."""
    held.swapped_out = kept_in_host(agent, held)
    how = "swapped out" if held.swapped_out else "evicted"
    return stop(agent, held, Then.PARK, f"{how} {what_for}", now_ns)


def stop(agent: "AgentProtocol", held: Held, then: Then, why: str, now_ns: int) -> list[Action]:
    """Bring a request on its way out, whatever it is doing; `then` says where to."""
    held.then, held.why = then, why
    if held.phase is Phase.RUNNING:
        agent.hands.move(held, Phase.ABORTING)
        _aborted(agent, held, now_ns)
        return [Abort(call_ids=(held.call_id,))]
    if held.phase is Phase.STAGED:
        agent.hands.move(held, Phase.CLOSING)
    agent.unwritten.touch(held)
    return []


def end(agent: "AgentProtocol", id: RequestId, outcome: Outcome, why: str, now_ns: int) -> list[Action]:
    """End a held request with an outcome of our own."""
    held = agent.held.get(id)
    if held is None or held.ended:
        return []
    held.outcome = outcome
    return stop(agent, held, Then.END, why, now_ns)


def give_all_back(agent: "AgentProtocol", why: str, now_ns: int) -> list[Action]:
    """Return every request that can be resumed elsewhere; pinned ones that have begun may finish."""
    actions: list[Action] = []
    for held in agent.held.values():
        begun = held.phase in GENERATING and held.request.evictability is Evictability.PINNED
        if held.then is None and not begun:
            actions += stop(agent, held, Then.RETURN, why, now_ns)
    return actions


def expire(agent: "AgentProtocol", now_ns: int) -> list[Action]:
    """End what is to be dropped at its deadline."""
    actions: list[Action] = []
    for held in agent.drops.pop(now_ns):
        if held.output and held.request.answered_by_first_token:
            continue
        held.outcome = Outcome.EXPIRED
        actions += stop(agent, held, Then.END, "its deadline passed", now_ns)
    at_ns = agent.drops.next_ns()
    if at_ns is not None:
        agent.alarm.want(at_ns)
    return actions


def abort_again(agent: "AgentProtocol", now_ns: int) -> list[Action]:
    """Repeat aborts without effect: one that overtakes its submission is ignored by the engine."""
    late = agent.late_aborts.pop(now_ns)
    for held in late:
        _aborted(agent, held, now_ns)
    return [Abort(call_ids=tuple(held.call_id for held in late))] if late else []


def _aborted(agent: "AgentProtocol", held: Held, now_ns: int) -> None:
    held.aborted_ns = now_ns
    agent.late_aborts.add(now_ns + ABORT_AGAIN_NS, held)
