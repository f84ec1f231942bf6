"""Demotion: requests that can no longer meet their deadline yield to those that can.

A class is served first come, first served. Once it is behind, its next request has waited too long already,
and so has each one after it: under overload the class would miss every objective at full throughput. Requests
that would be late if they started now therefore move to a class of their own (`RequestClass.late`), which
plans serve when nothing else would be late for it.
"""

from qlm.agents.core.queue_head import QueueHead
from qlm.agents.core.request import TrackedRequest
from qlm.agents.core.request_table import RequestTable
from qlm.agents.core.stats.agent_stats import AgentStats
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import ModelId


def too_late(tracked: TrackedRequest, stats: AgentStats, now_ns: int) -> bool:
    """Return True if a READY request would miss its deadline if it started now."""
    deadline_ns, cls = tracked.request.deadline_ns, tracked.request.cls
    if deadline_ns is None or cls.late or tracked.answered:
        return False
    # A request that has started is demoted only after its deadline: less of its work remains.
    lead_ns = 0 if tracked.output else _lead_ns(stats, cls, now_ns)
    return now_ns + lead_ns > deadline_ns


def others_wait(requests: RequestTable, queue: QueueHead, now_ns: int) -> bool:
    """Return True if a request other than one READY one waits to be served here."""
    return len(requests.leasing) > 0 or requests.ready > 1 or queue.group(now_ns) is not None


def needs_demotion_scan(
    head: Group, requests: RequestTable, queue: QueueHead, stats: AgentStats, now_ns: int
) -> bool:
    """Return True if messages must be pulled beyond batch capacity, to demote those that are too late.

    Running requests are not preempted for a group whose first request is late, so a slot might never free.
    """
    if head.deadline_ns is None or requests.new or queue.pulling:
        return False
    return now_ns + _lead_ns(stats, head.cls, now_ns) > head.deadline_ns


def late_behind(
    head: Group, model: ModelId, requests: RequestTable, queue: QueueHead, stats: AgentStats, now_ns: int
) -> tuple[Group, int] | None:
    """Return a group behind the head whose first request is too late, and how many may be: to demote them.

    Plans put a group last that cannot be in time. Those that arrive join it behind the late ones, and would
    be late in turn, one after the other, though each had time enough when it came.
    """
    if queue.pulling:
        return None
    for group in queue.behind(head, model, now_ns):
        if group.deadline_ns is None or group.cls.late:
            continue
        late_ns = now_ns + _lead_ns(stats, group.cls, now_ns) - group.deadline_ns
        # Those of the last scan that had time have to be served first.
        if late_ns > 0 and all(each.request.cls != group.cls for each in requests.ready_for(model)):
            return group, _late_in(group, queue.left(group), late_ns)
    return None


def _late_in(group: Group, left: int, late_ns: int) -> int:
    """Return how many requests of a group are too late if they came evenly and the first is by so much."""
    first_ns, last_ns = group.head_arrival_ns, group.last_arrival_ns
    if first_ns is None or last_ns is None or last_ns <= first_ns:
        return 1
    return max(1, min(left, int(left * late_ns / (last_ns - first_ns))))


def _lead_ns(stats: AgentStats, cls: RequestClass, now_ns: int) -> int:
    return stats.lead_times.lead_ns(cls, stats.demotion_runs.lead_ratio(cls, now_ns))
