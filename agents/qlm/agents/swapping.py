"""How an agent comes from one model to another: model swaps, in the order of its virtual queue.

Works on the state of `agents.protocol.AgentProtocol`.
"""

from typing import TYPE_CHECKING

from qlm.agents.eviction import cannot_wait, for_a_swap, watch_head
from qlm.agents.head import Stay
from qlm.agents.held import Then
from qlm.agents.stopping import give_all_back, stop
from qlm.domain.actions import Action, SwapModel
from qlm.domain.fleet import EngineState
from qlm.domain.group import Group
from qlm.domain.ids import ModelId

if TYPE_CHECKING:
    from qlm.agents.protocol import AgentProtocol


def bring_up(agent: "AgentProtocol", head: Group | None, now_ns: int) -> list[Action]:
    """Without an awake engine: start the one the virtual queue asks for, else the first model."""
    if head is not None:
        return _swap(agent, head.cls.model, head, now_ns)
    retry_ns = min((at_ns for at_ns in agent.failed_until_ns.values() if at_ns > now_ns), default=None)
    if retry_ns is None:
        return _swap(agent, agent.models[0], None, now_ns)
    agent.alarm.want(retry_ns)
    return []


def stay(agent: "AgentProtocol", now_ns: int) -> None:
    """Do not swap for work that can wait soon after work with a deadline (`agents.head.Stay`)."""
    model, timed, idle_s = agent.active, agent.timed, agent.settings.swap_idle_s
    if model is None or timed is None or timed[2] != model or not idle_s:
        agent.head.stay_with(None)
        return
    stays = Stay(
        model=model,
        priority=timed[1],
        since_ns=timed[0],
        idle_ns=round(idle_s * 1e9),
        swap_ns=agent.swap_ns,
    )
    agent.head.stay_with(stays)
    agent.head.group(now_ns)
    if agent.head.passed_over and agent.head.until_ns is not None:
        agent.alarm.want(max(agent.head.until_ns, now_ns + 1))


def toward_swap(agent: "AgentProtocol", head: Group, now_ns: int) -> list[Action]:
    """Let the present model's requests run out, or evict them if the head cannot wait; then swap."""
    if agent.head_since is None or agent.head_since[0] != head.id:
        agent.head_since = (head.id, now_ns)
    due_ns = agent.head_since[1] + round(agent.settings.swap_after_s * 1e9)
    if now_ns < due_ns:
        agent.alarm.want(due_ns)
        return []
    hands = agent.hands
    if hands.kv.running:
        return _evict_all(agent, head, now_ns)
    busy = agent.pulling or len(agent.held) > hands.staged
    actions = give_all_back(agent, f"swapping to {head.cls.model}", now_ns)
    return actions if busy or agent.held else [*actions, *_swap(agent, head.cls.model, head, now_ns)]


def _evict_all(agent: "AgentProtocol", head: Group, now_ns: int) -> list[Action]:
    """Evict what need not go first once running out would make the head late.

    Nobody is evicted for work that can wait, or groups of which all are late would take turns for ever.
    """
    watch_head(agent, now_ns)
    deadline_ns = head.hopeful_deadline_ns(now_ns)
    if (
        not agent.hands.running
        or deadline_ns is None
        or not agent.settings.evicts
        or not cannot_wait(agent, deadline_ns, now_ns)
    ):
        return []
    actions: list[Action] = []
    for victim in for_a_swap(agent.hands.running.values(), head=agent.head.urgency, now_ns=now_ns):
        why = f"evicted: {head.id} needs {head.cls.model}"
        agent.tally.evicted(victim.request.model)
        actions += stop(agent, victim, Then.RETURN, why, now_ns)
    if actions:
        agent.head.commit(head.id)
    return actions


def _swap(agent: "AgentProtocol", model: ModelId, head: Group | None, now_ns: int) -> list[Action]:
    agent.tally.swaps(agent.active, model, head.cls.queue if head else "", now_ns)
    agent.swapping_to = model
    later = tuple(each for each in agent.head.models() if each not in (model, agent.active))
    agent.head_since = None
    agent.head.release()
    agent.active, agent.capacity = None, None
    agent.engines[model] = EngineState.STARTING
    return [SwapModel(model=model, later=later)]
