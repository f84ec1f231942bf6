"""Bound of the prompts in an engine by the objectives that are expected (decision 50)."""

from typing import Final

from qlm.agents.core.request import TrackedRequest
from qlm.agents.core.scheduling.visits.forecasts import USUAL_TOKENS
from qlm.agents.core.scheduling.visits.waiting import arrival_slack_s
from qlm.agents.core.state import AgentState
from qlm.domain.group import RequestClass
from qlm.domain.urgency import SLACK_OF_S, SLACK_SHARE
from qlm.domain.virtual_queue import ClassForecast

LEAST_SHARE: Final = 0.2
"""Least slack, as a share of the objective: starts may take long because prompts wait in the engine."""


def follow_objectives(state: AgentState) -> None:
    """Set the bound after a change of the engine or of the forecasts."""
    requests = state.requests
    slack_s = float("inf") if requests.kv.pool else _tightest_slack_s(state)
    requests.prefill.bound(SLACK_SHARE * slack_s)


def computed_tokens(state: AgentState, tracked: TrackedRequest) -> int:
    """Return the tokens that the engine computes of a prompt, without what its prefix cache usually has."""
    # What cannot be resumed is generated again from its prompt.
    tokens = tracked.request.prompt_tokens if tracked.pinned else tracked.tokens
    return round(tokens * state.stats.prompts.computed_share(tracked.request.cls))


def prompts_wanted(state: AgentState, cls: RequestClass) -> int:
    """Return how many more prompts of a class may be pulled for the engine."""
    requests, computed = state.requests, state.stats.prompts.computed_tokens(cls)
    if computed is None:
        mean_tokens = requests.kv.tokens / requests.kv.running if requests.kv.running else USUAL_TOKENS
        computed = min(mean_tokens, USUAL_TOKENS)
    return requests.prefill.places(round(computed), len(requests.leasing) + state.queue.pulling)


def _tightest_slack_s(state: AgentState) -> float:
    """Return the least time that an expected request for the awake model can wait; infinite without one."""
    slacks_s = (
        max(LEAST_SHARE * due_ms / 1e3, slack_s)
        for each in state.queue.forecasts
        if each.cls.model == state.engines.active
        and (due_ms := each.cls.due_ms)  # 0 for policies by arrival: no urgent request goes before others
        and _may_come(each)
        and (slack_s := arrival_slack_s(state, each.cls)) is not None
    )
    return min(slacks_s, default=float("inf"))


def _may_come(forecast: ClassForecast) -> bool:
    """Return whether a request of a class may come soon.

    The rates of an instance that is free to leave its model are 0: others serve all arrivals. But as long as
    it stays, plans give it some of any class.
    """
    return not forecast.rate_rps or forecast.rate_rps * SLACK_OF_S >= 1
