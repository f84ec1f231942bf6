"""Two levers of a vLLM 0.32 scheduler, pulled before it schedules an iteration: preempt and hold.

With asynchronous scheduling, the iteration before that one is still computed at this time.
"""

from collections.abc import Iterable
from typing import Any


def preempt(scheduler: Any, ids: Iterable[str], now_s: float) -> int:
    """Preempt the requests that run and may be preempted, and return how many those are.

    With a KV connector, vLLM frees no block that the iteration in flight writes: a load might fill it at the
    same time. A request that ran is in that iteration. So it is kept out of the next one, and preempted once
    the first has ended: call this before each iteration.
    """
    count = 0
    for request in _running(scheduler, ids):
        if scheduler._request_blocks_can_be_freed(request):
            scheduler.running.remove(request)
            scheduler._preempt_request(request, now_s, drop_stale_output=scheduler.requires_kv_delivery)
            count += 1
        else:
            _keep_out(scheduler, request)
    return count


def hold(scheduler: Any, ids: Iterable[str]) -> int:
    """Keep the requests that run out of the next iteration, and return how many those are."""
    requests = _running(scheduler, ids)
    for request in requests:
        _keep_out(scheduler, request)
    return len(requests)


def _running(scheduler: Any, ids: Iterable[str]) -> list[Any]:
    found = (scheduler.requests.get(id) for id in ids)
    return [request for request in found if request is not None and request.status.name == "RUNNING"]


def _keep_out(scheduler: Any, request: Any) -> None:
    # `schedule` counts the step up first, and skips requests that are eligible from a later one. vLLM's own
    # value may be later still, with pipeline parallelism.
    request.next_decode_eligible_step = max(request.next_decode_eligible_step, scheduler.current_step + 2)
