"""vLLM's waiting queue with a gate: its scan ends behind the open part."""

from collections.abc import Iterable

from vllm.v1.core.sched.request_queue import FCFSRequestQueue
from vllm.v1.request import Request


class GatedQueue(FCFSRequestQueue):  # type: ignore[misc]  # vLLM has no types here
    """Waiting requests, of which vLLM may admit the first `open` only.

    vLLM asks `bool(queue)` whether to go on with its scan, and `len(queue)` whether there are requests at
    all: the latter counts all, so that the engine stays awake for those behind the gate.
    """

    def __init__(self, requests: Iterable[Request] = ()) -> None:
        super().__init__(requests)
        self.open = 0

    def __bool__(self) -> bool:
        """Return True if the scan may go on."""
        return self.open > 0 and len(self) > 0

    def pop_request(self) -> Request:
        """Take the first request through the gate."""
        self.open -= 1
        return self.popleft()

    def arrange(self, first: list[Request], rest: list[Request]) -> None:
        """Open the gate for `first`, in this order, with `rest` behind it; together they are the queue."""
        self.clear()
        self.extend(first)
        self.extend(rest)
        self.open = len(first)
