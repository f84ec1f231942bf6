"""What a decision about the visit is made from, taken from the agent's state."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

from qlm.agents.core.request import TrackedRequest
from qlm.agents.core.scheduling.visits.candidate import Candidate
from qlm.agents.core.scheduling.visits.forecasts import Forecasts
from qlm.agents.core.scheduling.visits.present import Present
from qlm.agents.core.scheduling.visits.remain import SPARE_S
from qlm.agents.core.scheduling.visits.starved import STARVED_PATIENCES
from qlm.agents.core.scheduling.visits.waiting import arrival_slack_s, backlog, lead_s, overdue, start_s
from qlm.agents.core.state import AgentState
from qlm.domain.group import Group
from qlm.domain.ids import ModelId
from qlm.rct_estimator.recompute import discarded_s


def candidates(
    state: AgentState, forecasts: Forecasts, now_ns: int, *, only: ModelId | None = None
) -> list[Candidate]:
    """Return the models of waiting groups that are not awake, without those whose engine failed lately.

    Args:
        state: The agent.
        forecasts: Its forecasts.
        now_ns: The present.
        only: The one model to look at; None for all.
    """
    waiting = defaultdict[ModelId, list[tuple[Group, int]]](list)
    for group, left in state.queue.waiting():
        if group.cls.model != state.engines.active and only in (None, group.cls.model):
            waiting[group.cls.model].append((group, left))
    failed = state.engines.failed_until_ns
    return [
        Candidate(
            model=model,
            backlog=backlog(state, forecasts, groups, now_ns),
            swap_s=state.engines.swap_ns.get(model, 0) / 1e9,
            arrivals_rps=sum(each.rate_rps for each in forecasts.of(model) if each.cls.due_ms is not None),
            quick=tuple(_quick(state, forecasts, model)),
            waiting=sum(left for _group, left in groups),
            all_work_s=sum(left * forecasts.service_s(group.cls) for group, left in groups),
            waits_s=_waits_s(state, model, groups, now_ns),
            overdue=sum(overdue(state, group, left, now_ns) for group, left in groups),
            priority=min(group.cls.priority for group, _left in groups),
        )
        for model, groups in waiting.items()
        if failed.get(model, 0) <= now_ns
    ]


def _waits_s(state: AgentState, model: ModelId, groups: Iterable[tuple[Group, int]], now_ns: int) -> float:
    arrivals_ns = (
        each.head_arrival_ns
        for each, _left in groups
        if each.head_arrival_ns is not None and not 0 <= start_s(state, each, now_ns) < math.inf
    )
    first_ns = max(min(arrivals_ns, default=now_ns), state.visit.left_ns.get(model, 0))
    return max(0.0, (now_ns - first_ns) / 1e9)


def _quick(state: AgentState, forecasts: Forecasts, model: ModelId) -> Iterator[tuple[float, float]]:
    homes, cost = state.queue.homes, state.costs.swap.get(model)
    if homes and model not in homes:
        return
    warm_s = cost.warm_s if cost is not None else 0.0
    for each in forecasts.of(model):
        slack_s = arrival_slack_s(state, each.cls)
        if slack_s is not None and slack_s > warm_s:
            yield each.rate_rps, slack_s - warm_s


def present(state: AgentState, model: ModelId, forecasts: Forecasts, now_ns: int) -> Present:
    """Describe the awake model, and what runs on it."""
    requests, visit = state.requests, state.visit
    groups = [(group, left) for group, left in state.queue.waiting() if group.cls.model == model]
    priorities = [group.cls.priority for group, _left in groups]
    priorities += [tracked.request.cls.priority for tracked in requests.all.values()]
    recompute_s = state.costs.kv[model].recompute_s if model in state.costs.kv else 0.0
    # What was begun as a stopgap is evicted whenever the visit ends: that does not speak against its end.
    evicted = (each for each in requests.running.values() if each.preemptible and not each.generation.stopgap)
    tokens = sum(tracked.tokens for tracked in evicted)
    return Present(
        backlog=backlog(state, forecasts, groups, now_ns),
        back_s=back_s(state, model),
        awake_s=(now_ns - visit.awake_ns) / 1e9,
        idle_s=_idle_s(visit.idle_ns, (group for group, _left in groups), now_ns),
        running_slack_s=tuple(_slacks_s(state, forecasts, now_ns)),
        evicting_s=discarded_s(tokens, recompute_s),
        drain_s=max(_ends_s(state, forecasts, evictable=False), default=0.0),
        ends_s=max(_ends_s(state, forecasts, evictable=True), default=0.0),
        service_s=forecasts.mean_service_s(model),
        arrivals=tuple(
            (each.rate_rps, max(0.0, slack_s))
            for each in forecasts.of(model)
            if (slack_s := arrival_slack_s(state, each.cls)) is not None
        ),
        answer_s=forecasts.mean_answer_s(model),
        starved_after_s=_starved_after_s(state),
        priority=min(priorities, default=None),
        waiting=tuple((forecasts.work(group.cls), start_s(state, group, now_ns)) for group, _left in groups),
        spare_s=_spare_s(requests.running.values(), recompute_s),
    )


def _starved_after_s(state: AgentState) -> float:
    settings = state.settings
    return STARVED_PATIENCES * settings.patience_s if settings.late_weight > 0 else float("inf")


def _idle_s(since_ns: int | None, waiting: Iterable[Group], now_ns: int) -> float:
    """Return the time without anything to do: work of the awake model that has come since ends it."""
    if since_ns is None or any((group.last_arrival_ns or now_ns) > since_ns for group in waiting):
        return 0.0
    return max(1e-9, (now_ns - since_ns) / 1e9)


def _spare_s(running: Collection[TrackedRequest], recompute_s: float) -> float:
    """Return the work of prompts that stopgaps may add; 0 if anything else runs.

    Requests with an objective that arrive next wait for all prompts in the engine.
    """
    if not all(each.generation.stopgap for each in running):
        return 0.0
    begun = sum(each.tokens for each in running if len(each.output) <= each.resumed_at)
    return max(0.0, SPARE_S - discarded_s(begun, recompute_s))


def _slacks_s(state: AgentState, forecasts: Forecasts, now_ns: int) -> Iterator[float]:
    """Yield how long each request on this instance may still be away, if it has an objective to meet."""
    for tracked in state.requests.all.values():
        slack = slack_s(state, forecasts, tracked, now_ns)
        if slack is not None and slack >= 0:
            yield slack


def slack_s(state: AgentState, forecasts: Forecasts, tracked: TrackedRequest, now_ns: int) -> float | None:
    """Return how long a request may still be away; None without an objective to meet, negative if lost."""
    deadline_ns = tracked.request.deadline_ns
    if tracked.best_effort or tracked.answered or tracked.ended or deadline_ns is None:
        return None
    return (deadline_ns - now_ns) / 1e9 - _remaining_s(state, forecasts, tracked)


def _remaining_s(state: AgentState, forecasts: Forecasts, tracked: TrackedRequest) -> float:
    """Return the time from a start to what the objective is about; of an answer that has begun, its rest."""
    return _rest_s(state, forecasts, tracked) if tracked.output else lead_s(state, tracked.request.cls)


def _ends_s(state: AgentState, forecasts: Forecasts, *, evictable: bool) -> Iterator[float]:
    """Yield the times until the running requests that may be evicted, or may not be, have ended."""
    for tracked in state.requests.running.values():
        if tracked.preemptible is evictable and not (evictable and tracked.generation.stopgap):
            yield _rest_s(state, forecasts, tracked)


def _rest_s(state: AgentState, forecasts: Forecasts, tracked: TrackedRequest) -> float:
    """Return the time until the answer of a running request ends."""
    token_s = state.stats.pace_of(state.engines.active).token_s
    return min(tracked.tokens_left * token_s, forecasts.answer_s(tracked.request.cls))


def back_s(state: AgentState, model: ModelId) -> float:
    """Return the time until the awake model would serve again, from the tier in which it would sleep."""
    use = state.engines.host_memory(state.prefetch.models, state.costs.swap)
    return state.costs.return_s(model, use)
