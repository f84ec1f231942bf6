"""Warming ahead: models later in the virtual queue are brought into host memory while it lasts (QLM, 5).

A real engine cannot be started beside the awake one, whose weights and KV cache fill the accelerator, nor can
one that sleeps without weights get them into host memory but through the accelerator. What can be done while
another model serves is to read weights files into host memory: the start or reload that comes later finds
them there. Works on the state of `agents.protocol.AgentProtocol`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from qlm.agents.host_memory import ASLEEP_IN, Holding
from qlm.domain.actions import Action, CoolModel, WarmModel
from qlm.domain.fleet import EngineState
from qlm.domain.ids import ModelId

if TYPE_CHECKING:
    from qlm.agents.events import HeldAhead
    from qlm.agents.protocol import AgentProtocol


class Ahead:
    """What an agent knows of weights files held ahead of their models' turns.

    Attributes:
        models: Whose are held, the oldest first.
        under_way: The model that is being warmed or cooled, if any.
        stale: Something has changed since it was last decided what to hold.
    """

    def __init__(self) -> None:
        self.models: tuple[ModelId, ...] = ()
        self.under_way: ModelId | None = None
        self.stale = False
        self._refused: set[ModelId] = set()

    def told(self, event: "HeldAhead") -> None:
        """Take the answer of whoever holds the files."""
        self.models = event.models
        if event.answered is None:
            return
        if event.refused:
            self._refused.add(event.answered)
        self.under_way = None
        self.stale = True

    def changed(self, *, memory: bool = False) -> None:
        """Decide anew; if host memory changed, what was refused may have room."""
        self.stale = True
        if memory:
            self._refused.clear()

    def may_come(self, model: ModelId) -> bool:
        """Whether a model's files are worth asking for."""
        return model not in self.models and model not in self._refused


def look_ahead(agent: "AgentProtocol", now_ns: int) -> list[Action]:
    """Warm the next model in the queue that can be, or cool one that takes its room; one at a time."""
    ahead = agent.ahead
    ahead.stale = False
    if ahead.under_way is not None or agent.draining or not agent.settings.warms_ahead:
        return []
    wanted = [model for model in agent.head.models() if model != agent.active and model != agent.swapping_to]
    action = _next(agent, wanted)
    if action is None:
        return []
    ahead.under_way = action.model
    agent.tally.warms(action, now_ns)
    return [action]


def _next(agent: "AgentProtocol", wanted: Sequence[ModelId]) -> WarmModel | CoolModel | None:
    costs, ahead = agent.costs.swap, agent.ahead
    for at, model in enumerate(wanted):
        if model not in costs or agent.engines[model] is EngineState.ASLEEP or not ahead.may_come(model):
            continue
        if costs[model].ahead_saves_s <= 0:
            continue
        free_bytes = agent.costs.host_memory_bytes - _held(agent).bytes(costs)
        if costs[model].weights_bytes <= free_bytes:
            return WarmModel(model=model)
        before = set(wanted[:at])
        for other in reversed(ahead.models):
            if other not in before:
                return CoolModel(model=other)
        return None
    return None


def _held(agent: "AgentProtocol") -> Holding:
    """What is in host memory, by the states of the engines; models of unknown size left out."""
    costs = agent.costs.swap
    states = ((model, ASLEEP_IN.get(state)) for model, state in agent.engines.items() if model in costs)
    return Holding(
        asleep={model: tier for model, tier in states if tier is not None},
        ahead=tuple(model for model in agent.ahead.models if model in costs),
    )
