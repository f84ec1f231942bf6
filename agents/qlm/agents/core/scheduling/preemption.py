"""Preemption of running requests for more urgent ones (request eviction, QLM section 5)."""

from collections.abc import Callable, Collection, Iterable
from typing import Final

from qlm.agents.core.costs.kv_offload import kept_in_host
from qlm.agents.core.lifecycle import Cause, advance
from qlm.agents.core.request import TrackedRequest
from qlm.agents.core.scheduling.giving_up import give_up
from qlm.agents.core.scheduling.slot_wait import worth_waiting_s
from qlm.agents.core.scheduling.visits.forecasts import Forecasts
from qlm.agents.core.scheduling.visits.inputs import slack_s
from qlm.agents.core.scheduling.visits.remain import MARGIN_S
from qlm.agents.core.state import AgentState
from qlm.domain.actions import Action
from qlm.domain.group import RequestClass

RECHECK_NS: Final = 50_000_000
"""Shortest time until a decision to wait is checked again without an event."""

Urgency = tuple[int, float, int]


def preempt(state: AgentState, tracked: TrackedRequest, purpose: str, now_ns: int) -> list[Action]:
    """Preempt a running request; it resumes here, from host memory if its KV cache is still there then."""
    swapped_out = kept_in_host(state.costs.kv, state.stats.work, tracked)
    tracked.generation.swapped_out = swapped_out
    why = f"{'swapped out' if swapped_out else 'evicted'} {purpose}"
    return advance(state.requests, tracked, Cause.PREEMPTED, now_ns, why=why)


def preempt_for(
    state: AgentState,
    head: Urgency,
    cls: RequestClass,
    deadline_ns: int | None,
    count: int,
    now_ns: int,
    *,
    least: int = 1,
    tokens: int = 0,
) -> list[Action]:
    """Give up readers for the head, or preempt less urgent requests if waiting for a slot would make it late.

    Args:
        state: The agent.
        head: Urgency of what is to start.
        cls: Its class.
        deadline_ns: Its deadline.
        count: Batch slots that it needs; no more requests are preempted.
        now_ns: The present.
        least: Batch slots without which nothing can start; fewer requests are not preempted.
        tokens: Tokens of the head; 0 if they are not known.
    """
    requests = state.requests
    if deadline_ns is not None and (given_up := give_up(state, count, now_ns)):
        return given_up
    # Requests queued in the engine take freed slots first, so as many more must be preempted.
    queued = requests.kv.overcommitted - len(requests.aborting)
    count += queued
    if count <= 0 or deadline_ns is None or not state.settings.preempts:
        return []
    watch_head(state, now_ns)
    if not requests.running_index.any_less_urgent(head) or not cannot_wait(state, cls, deadline_ns, now_ns):
        return []
    within_s = (_start_by_ns(state, cls, deadline_ns) - now_ns) / 1e9
    wait_ns = round(1e9 * worth_waiting_s(state, tokens, max(1, least + queued), within_s))
    if wait_ns > 0:
        _recheck(state, now_ns + wait_ns, now_ns)
        return []
    spared = _loses_its_objective(state, now_ns)
    chosen = victims(requests.running.values(), head=head, count=count, now_ns=now_ns, spared=spared)
    if least > 1 and len(chosen) < least + queued:
        return []
    actions: list[Action] = []
    for victim in chosen:
        actions += preempt(state, victim, "for more urgent work", now_ns)
    return actions


def watch_head(state: AgentState, now_ns: int) -> None:
    """Schedule a re-check for when a deferred group ahead of the head becomes eligible."""
    if state.queue.until_ns is not None:
        _recheck(state, state.queue.until_ns, now_ns)


def cannot_wait(state: AgentState, cls: RequestClass, deadline_ns: int, now_ns: int) -> bool:
    """Return True if waiting for a slot to free by itself would miss a deadline; else schedule a re-check.

    The slot frees at the pace of the awake model. The head then takes the time to what its objective is
    about: its first token, or its whole answer at the pace of its own model.
    """
    start_by_ns, pace = _start_by_ns(state, cls, deadline_ns), state.stats.pace_of(state.engines.active)
    at_ns = state.requests.running_index.preempt_at_ns(start_by_ns, pace, now_ns)
    if at_ns > now_ns:
        _recheck(state, at_ns, now_ns)
    return at_ns <= now_ns


def _start_by_ns(state: AgentState, cls: RequestClass, deadline_ns: int) -> int:
    stats = state.stats
    takes_s = stats.lead_times.takes_s(cls) if cls.about_first_token else stats.pace_of(cls.model).service_s
    return deadline_ns - round(takes_s * 1e9)


def _recheck(state: AgentState, at_ns: int, now_ns: int) -> None:
    state.alarm.want(max(at_ns, now_ns + RECHECK_NS))


def _loses_its_objective(state: AgentState, now_ns: int) -> Callable[[TrackedRequest], bool]:
    forecasts = Forecasts(state)

    def loses(tracked: TrackedRequest) -> bool:
        slack = slack_s(state, forecasts, tracked, now_ns)
        return slack is not None and 0 <= slack < MARGIN_S

    return loses


def victims(
    running: Iterable[TrackedRequest],
    *,
    head: Urgency,
    count: int,
    now_ns: int,
    spared: Callable[[TrackedRequest], bool] = lambda _: False,
) -> list[TrackedRequest]:
    """Choose up to `count` requests to preempt for a head, the least urgent first.

    Only requests strictly less urgent by priority or deadline qualify, never pinned ones. Among equals the
    one with the least work to lose is preempted first.
    """
    able = [
        tracked
        for tracked in running
        if _yields(tracked, head, now_ns) and (tracked.urgency[0] > head[0] or not spared(tracked))
    ]
    able.sort(key=lambda tracked: (-tracked.urgency[0], -tracked.urgency[1], tracked.tokens, tracked.order))
    return able[:count]


def victims_of_swap(
    running: Collection[TrackedRequest], *, head: Urgency, now_ns: int
) -> list[TrackedRequest]:
    """Choose the requests to preempt for a model swap.

    The next model serves only when none of them runs, so the instance would be nearly idle while the last
    ones finish. Requests that have met their objective by their first token are therefore preempted as well,
    unless their priority is higher.
    """
    less_urgent = (tracked for tracked in running if _yields(tracked, head, now_ns))
    answered = (
        tracked
        for tracked in running
        if tracked.preemptible and tracked.answered and tracked.urgency[0] >= head[0]
    )
    return list({tracked.id: tracked for tracked in (*less_urgent, *answered)}.values())


def _yields(tracked: TrackedRequest, head: Urgency, now_ns: int) -> bool:
    # A head that is already late preempts only requests without a deadline: others may still meet theirs.
    spared = head[1] <= now_ns and tracked.request.deadline_ns is not None
    return tracked.preemptible and tracked.urgency[:2] > head[:2] and not spared
