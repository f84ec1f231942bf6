"""Waiting groups as backlogs, and the latest starts of their requests."""

from collections.abc import Iterable

from qlm.agents.core.scheduling.visits.backlog import Backlog, HopefulRequests, Patience, in_time
from qlm.agents.core.scheduling.visits.forecasts import Forecasts
from qlm.agents.core.state import AgentState
from qlm.domain.group import Group, RequestClass


def backlog(
    state: AgentState, forecasts: Forecasts, groups: Iterable[tuple[Group, int]], now_ns: int
) -> Backlog:
    """Return groups, with their requests that no agent has, as a backlog."""
    parts = (_hopeful(state, forecasts, group, left, now_ns) for group, left in groups)
    return Backlog(part for part in parts if part is not None)


def _hopeful(
    state: AgentState, forecasts: Forecasts, group: Group, left: int, now_ns: int
) -> HopefulRequests | None:
    cls = group.cls
    if group.head_arrival_ns is None:
        return None
    if cls.due_ms is None:
        return HopefulRequests.deferred(
            Patience(state.settings.patience_s, state.settings.late_weight),
            priority=cls.priority,
            requests=left,
            waits_s=(now_ns - group.head_arrival_ns) / 1e9,
            spread_s=_spread_s(group, now_ns),
            service_s=forecasts.service_s(cls),
            objective_s=None if cls.target_ms is None else cls.target_ms / 1e3,
        )
    first_s = start_s(state, group, now_ns)
    return HopefulRequests.of(
        priority=cls.priority,
        requests=left,
        first_s=first_s,
        last_s=first_s + _spread_s(group, now_ns),
        service_s=forecasts.service_s(cls),
        objective_s=cls.due_ms / 1e3,
    )


def overdue(state: AgentState, group: Group, left: int, now_ns: int) -> float:
    """Return the worth of a group's late requests whose class is not late, in missed objectives.

    Agents demote only what they would start: what waits for a model that is awake nowhere stays in its class.
    """
    if group.deadline_ns is None:
        return 0.0
    first_s = start_s(state, group, now_ns)
    return (left - in_time(left, first_s, first_s + _spread_s(group, now_ns))) * state.settings.late_weight


def _spread_s(group: Group, now_ns: int) -> float:
    """Return the time from the first arrival of a group's waiting requests to the last."""
    if group.head_arrival_ns is None:
        return 0.0
    return max(0, (group.last_arrival_ns or now_ns) - group.head_arrival_ns) / 1e9


def latest_start_ns(state: AgentState, group: Group) -> int | None:
    """Return the latest start of a group's first request; None without an objective."""
    if group.deadline_ns is None:
        return None
    return group.deadline_ns - state.stats.lead_times.lead_ns(group.cls)


def start_s(state: AgentState, group: Group, now_ns: int) -> float:
    """Return the time until the latest start of a group's first request; infinite without an objective."""
    latest_ns = latest_start_ns(state, group)
    return float("inf") if latest_ns is None else (latest_ns - now_ns) / 1e9


def arrival_slack_s(state: AgentState, cls: RequestClass) -> float | None:
    """Return how long a request that arrives can wait for its start, seconds; None without an objective.

    It is negative if none can be in time.
    """
    return None if cls.due_ms is None else cls.due_ms / 1e3 - lead_s(state, cls)


def lead_s(state: AgentState, cls: RequestClass) -> float:
    """Return the mean time from a start to what the objective of a class is about, seconds."""
    return state.stats.lead_times.lead_ns(cls) / 1e9
