"""The levers of a vLLM 0.32 scheduler, pulled before it schedules an iteration: preempt, hold, admit.

With asynchronous scheduling, the iteration before that one is still computed at this time.
"""

from collections.abc import Callable, Iterable
from typing import Any

from qlm.agents.vllm_scheduler.engine_facts import free_blocks, needed_blocks
from qlm.agents.vllm_scheduler.levers import Levers, open_part


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


class Arrangement:
    """Order of the waiting queue: what vLLM keeps, what the policy wants, and the others behind the gate.

    It is made only if something has changed: thousands may wait, and an iteration takes some milliseconds.

    Args:
        scheduler: vLLM's, whose waiting queue is a `GatedQueue`.
        ours: True for a waiting request that the policy decides about.
    """

    def __init__(self, scheduler: Any, ours: Callable[[Any], bool]) -> None:
        self._scheduler, self._ours = scheduler, ours
        self._levers: Levers | None = None
        self._left: list[Any] = []
        self._wanted: dict[str, Any] = {}
        self._chosen: list[str] = []

    def follow(self, levers: Levers) -> None:
        """Let vLLM see what the levers say."""
        waiting = self._scheduler.waiting
        if not len(waiting) or self._holds(levers):
            return
        ours: list[Any] = []
        self._levers, self._left = levers, []
        for request in waiting:
            (ours if self._ours(request) else self._left).append(request)
        self._wanted = {each.request_id: each for each in ours if each.request_id in levers.order}
        self._chosen = self._fitting(levers)
        chosen = set(self._chosen)
        first = self._left + [self._wanted[id] for id in self._chosen]
        waiting.arrange(first, [each for each in ours if each.request_id not in chosen])

    def _holds(self, levers: Levers) -> bool:
        """Return True if the order would be the same again; note who was admitted since."""
        waiting = self._scheduler.waiting
        if levers is not self._levers or not waiting.untouched or any(map(self._ours, self._left)):
            return False
        admitted = len(self._left) + len(self._chosen) - waiting.open
        if admitted and self._left:
            return False
        for id in self._chosen[:admitted]:
            del self._wanted[id]
        self._chosen = self._chosen[admitted:]
        return not levers.skips or self._fitting(levers) == self._chosen

    def _fitting(self, levers: Levers) -> list[str]:
        scheduler = self._scheduler
        needed = ((id, needed_blocks(scheduler, request)) for id, request in self._wanted.items())
        return open_part(needed, levers.order, free_blocks(scheduler), skips=levers.skips)


def _running(scheduler: Any, ids: Iterable[str]) -> list[Any]:
    found = (scheduler.requests.get(id) for id in ids)
    return [request for request in found if request is not None and request.status.name == "RUNNING"]


def _keep_out(scheduler: Any, request: Any) -> None:
    # `schedule` counts the step up first, and skips requests that are eligible from a later one. vLLM's own
    # value may be later still, with pipeline parallelism.
    request.next_decode_eligible_step = max(request.next_decode_eligible_step, scheduler.current_step + 2)
