"""Readers that were given up leave the places of a full engine to those in time.

A batch policy lets a reader wait that has idled for long. Where an overload lasts, such readers fill its
places in the engine, and no other comes in, whatever time is left for it. So they go back to the queue, to
the class of late requests, like those that are late before they begin (`scheduling.demotion`).
"""

from typing import Final

from qlm.agents.batching.room import IDLE_MAX_S
from qlm.agents.core.lifecycle import Cause, advance
from qlm.agents.core.request import TrackedRequest
from qlm.agents.core.state import AgentState
from qlm.domain.actions import Action
from qlm.domain.slo import DeadlineSlo, ReadingSlo, TokenSlo
from qlm.domain.streaming.reader import Reader

SEARCH_EVERY_NS: Final = 1_000_000_000
"""Time between two searches of a full engine, which look at each request in it."""

AT_ONCE_SHARE: Final = 1 / 8
"""Share of the batch slots that a search frees at least, for those that come until the next one."""


def give_up(state: AgentState, count: int, now_ns: int) -> list[Action]:
    """Send given-up readers of the engine's pool back to the queue, those with the least output first.

    Args:
        state: The agent.
        count: Places that are needed now.
        now_ns: The present.
    """
    requests = state.requests
    if not state.settings.demotes or not requests.kv.pool_in_engine or requests.aborting:
        return []
    index = requests.running_index
    if 0 <= now_ns - index.searched_ns < SEARCH_EVERY_NS:
        state.alarm.want(index.searched_ns + SEARCH_EVERY_NS)
        return []
    index.searched_ns = now_ns
    able = [each for each in requests.running.values() if each.preemptible and is_given_up(each, now_ns)]
    able.sort(key=lambda tracked: (len(tracked.output), tracked.order))
    actions: list[Action] = []
    for tracked in able[: max(count, round(AT_ONCE_SHARE * requests.kv.seqs_max))]:
        why = "evicted: its reader waited too long, and others need its place in the engine"
        actions += advance(requests, tracked, Cause.GIVEN_UP, now_ns, why=why)
    return actions


def is_given_up(tracked: TrackedRequest, now_ns: int) -> bool:
    """Return True if its first or its reader's next token, or its whole answer, is overdue for too long."""
    if tracked.best_effort:
        return False
    waited_s = (now_ns - tracked.request.arrival_ns) / 1e9
    match tracked.request.slo:
        case ReadingSlo() as slo:
            return waited_s - Reader.of(slo).due_s(len(tracked.output)) > IDLE_MAX_S
        case DeadlineSlo(deadline_ms=deadline_ms):
            return waited_s - deadline_ms / 1000 > IDLE_MAX_S
        case TokenSlo(ttft_ms=ttft_ms) if not tracked.output:
            return waited_s - ttft_ms / 1000 > IDLE_MAX_S
    return False
