"""How an agent comes from one model to another: model swaps, in the order of its virtual queue.

Works on the state of `agents.protocol.AgentProtocol`.
"""

from typing import TYPE_CHECKING

from qlm.agents.eviction import cannot_wait, for_a_swap, watch_head
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
    """Do not swap for work that can wait soon after work with a deadline, unless its priority is higher.

    Work without a deadline gains nothing by being early, and a deadline is far while more than half of the
    target is left; but who comes next for the present model would wait for two swaps. So nobody with a
    deadline must have started for about as long as these take (the rule of the ski rental: never more than
    twice the cost of knowing what comes).
    """
    model, timed = agent.active, agent.timed
    if model is None or timed is None:
        agent.head.stay_with(None)
        return
    free_ns = timed[0] + round(agent.settings.swap_idle_s * 1e9)
    agent.head.stay_with((model, timed[1]) if now_ns < free_ns else None)
    agent.head.group(now_ns)
    if agent.head.passed_over:
        agent.alarm.want(free_ns)


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
