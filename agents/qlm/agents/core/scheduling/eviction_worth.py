"""Whether evictions for a model swap save more requests than they lose. All times are seconds from now."""

from collections.abc import Sequence
from typing import Final

from qlm.agents.core.request import TrackedRequest
from qlm.agents.core.scheduling.visits.backlog import DELAY_MAX_S
from qlm.agents.core.scheduling.visits.forecasts import Forecasts
from qlm.agents.core.scheduling.visits.inputs import back_s, candidates, slack_s
from qlm.agents.core.state import AgentState
from qlm.domain.group import Group
from qlm.domain.ids import ModelId
from qlm.rct_estimator.recompute import discarded_s

RECHECK_NS: Final = 250_000_000
"""Time for which evictions that were not worth it are not weighed again: that looks at all requests."""


def worth_evicting(
    state: AgentState, model: ModelId, head: Group, victims: Sequence[TrackedRequest], now_ns: int
) -> bool:
    """Return True if a swap for a group gains by evicting requests instead of letting them end; else recheck.

    A group of a higher priority than all that runs is always worth it.

    Args:
        state: The agent.
        model: The awake model.
        head: The group that needs another model.
        victims: Running requests that would be evicted.
        now_ns: The present.
    """
    running = state.requests.running.values()
    if head.cls.priority < min(each.request.cls.priority for each in running):
        return True
    known = state.engines.no_evictions_for
    if known is not None and known[0] == head.id and now_ns < known[1]:
        state.alarm.want(known[1])
        return False
    if _weigh(state, model, head, victims, now_ns):
        return True
    state.engines.no_evictions_for = head.id, now_ns + RECHECK_NS
    state.alarm.want(now_ns + RECHECK_NS)
    return False


def _weigh(
    state: AgentState, model: ModelId, head: Group, victims: Sequence[TrackedRequest], now_ns: int
) -> bool:
    forecasts = Forecasts(state)
    found = candidates(state, forecasts, now_ns, only=head.cls.model)
    if not found:
        return False
    (waiting,) = found
    # What is not evicted ends sooner without the others, so the swap counts as if it began now.
    pace = state.stats.pace_of(model)
    ends_s = max(
        pace.longest_wait_s(each.tokens_left, (now_ns - each.generation.started_ns) / 1e9)
        for each in state.requests.running.values()
    )
    saved = waiting.saved(waiting.swap_s, delay_s=min(DELAY_MAX_S, ends_s))
    if waiting.too_slow:  # what waits is lost; who comes while the model is awake can be in time
        saved += waiting.arrivals_rps * waiting.stays_s
    away_s = waiting.swap_s + waiting.backlog.work_s + back_s(state, model)
    return saved > _lost(state, model, forecasts, victims, away_s, now_ns)


def _lost(
    state: AgentState,
    model: ModelId,
    forecasts: Forecasts,
    victims: Sequence[TrackedRequest],
    away_s: float,
    now_ns: int,
) -> float:
    """Return the victims that are late after the absence, and what computing them again takes from others."""
    slacks_s = (slack_s(state, forecasts, each, now_ns) for each in victims)
    late = sum(slack is not None and 0 <= slack < away_s for slack in slacks_s)
    recompute_s = state.costs.kv[model].recompute_s if model in state.costs.kv else 0.0
    again_s = discarded_s(sum(each.tokens for each in victims), recompute_s)
    return late + again_s / max(forecasts.mean_service_s(model), 1e-6)
