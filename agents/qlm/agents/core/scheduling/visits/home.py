"""An instance that has nothing to do starts a model of its placement.

Requests do not: where a start takes longer than their objective, each is better served elsewhere, and the
instance would never take part.
"""

from typing import Final

from qlm.agents.core.scheduling.model_swap import begin_swap
from qlm.agents.core.state import AgentState
from qlm.domain.actions import Action
from qlm.domain.ids import ModelId

HOME_AFTER_NS: Final = 1_000_000_000
"""Idle time before the start: the next plan may bring work for the awake model."""


def go_home(state: AgentState, model: ModelId, now_ns: int) -> list[Action]:
    """Start the first model of the placement if the awake one is none of them and nothing waits or runs."""
    idle_ns, homes = state.visit.idle_ns, state.queue.homes
    if idle_ns is None or not homes or model in homes:
        return []
    if state.requests.all or state.queue.pulling or any(state.queue.waiting()):
        return []
    if now_ns < idle_ns + HOME_AFTER_NS:
        state.alarm.want(idle_ns + HOME_AFTER_NS)
        return []
    failed = state.engines.failed_until_ns
    home = next((each for each in homes if failed.get(each, 0) <= now_ns), None)
    return [] if home is None else begin_swap(state, home, None, now_ns)
