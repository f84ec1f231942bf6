"""Adaptive concurrency limit: caps the batch so that requests meet their time-per-output-token target.

A full batch has the highest throughput and the slowest requests: a long answer with a deadline may then be
late although it started at once, and a stream slower than promised. So the agent measures the time per output
token and runs fewer requests while it is too long. Only best-effort work is limited. SLO-bound requests may
fill the engine, since those that wait are later still.

A call of a task is different: its deadline leaves it all the time that the task can spare, and what it does
not take its later calls have. So its pace counts however late it is due, and while such calls run that can be
in time, no best-effort work starts in the second half of the batch.
"""

from collections.abc import Iterable
from math import ceil
from typing import Final

from qlm.agents.core.request import TrackedRequest
from qlm.agents.core.request_table import RequestTable
from qlm.agents.core.stats.concurrency import LEAST_SHARE, ConcurrencyLimit
from qlm.agents.core.stats.work_meter import WorkMeter
from qlm.agents.core.timers import Alarm

UPDATE_NS: Final = 500_000_000
"""Interval between updates of the limit."""

SLACK: Final = 1 / 16
"""Share of the limit by which a batch may exceed it before requests are preempted for that."""


def requests_over_limit(
    limit: ConcurrencyLimit,
    requests: RequestTable,
    work: WorkMeter,
    alarm: Alarm,
    now_ns: int,
    *,
    paced: bool,
) -> list[TrackedRequest]:
    """Update the limit at its interval, and return the best-effort requests to preempt for it.

    Calls of tasks lower it in any case (decision 36), and nothing is preempted for them.

    Args:
        limit: Measurements behind the limit.
        requests: Requests of the agent.
        work: Work of the engine since it woke.
        alarm: Takes the time of the next update.
        now_ns: The present.
        paced: The limit follows the pace that running requests need, too (`operations.limit_batch`).
    """
    kv = requests.kv
    if now_ns < limit.next_update_ns:
        if kv.best_effort_limit < kv.seqs_max:
            alarm.want(limit.next_update_ns)
        return []
    limit.next_update_ns = now_ns + UPDATE_NS
    running = requests.running.values()
    kv.best_effort_limit = kv.seqs_max
    over = _over_pace(limit, requests, work, alarm, now_ns) if paced else []
    if kv.of_tasks and _task_may_be_in_time(running):
        kv.best_effort_limit = min(kv.best_effort_limit, ceil(LEAST_SHARE * kv.seqs_max))
        alarm.want(limit.next_update_ns)
    return over


def _over_pace(
    limit: ConcurrencyLimit, requests: RequestTable, work: WorkMeter, alarm: Alarm, now_ns: int
) -> list[TrackedRequest]:
    kv, running = requests.kv, requests.running.values()
    target_s = limit.target_s(running)
    work.observe(kv.in_batch, now_ns)
    kv.best_effort_limit = limit.update(work, target_s, kv.seqs_max, now_ns)
    if target_s is None:
        return []
    alarm.want(limit.next_update_ns)
    surplus = len(running) - kv.best_effort_limit
    if surplus <= SLACK * kv.best_effort_limit:
        return []
    able = [tracked for tracked in running if tracked.best_effort and tracked.preemptible]
    able.sort(key=lambda tracked: (-tracked.urgency[0], tracked.tokens, tracked.order))
    return able[:surplus]


def _task_may_be_in_time(running: Iterable[TrackedRequest]) -> bool:
    return any(each.request.extensions.task_id is not None and not each.best_effort for each in running)
