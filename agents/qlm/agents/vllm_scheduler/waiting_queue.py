"""vLLM's waiting queue with a gate: its scan ends behind the open part."""

from collections.abc import Iterable

from vllm.v1.core.sched.request_queue import FCFSRequestQueue
from vllm.v1.request import Request


class GatedQueue(FCFSRequestQueue):  # type: ignore[misc]  # vLLM has no types here
    """Waiting requests, of which vLLM may admit the first `open` only.

    vLLM asks `bool(queue)` whether to go on with its scan, and `len(queue)` whether there are requests at
    all: the latter counts all, so that the engine stays awake for those behind the gate.

    Attributes:
        open: Requests that vLLM may admit.
        untouched: Nothing but admissions has happened since it was arranged.
    """

    def __init__(self, requests: Iterable[Request] = ()) -> None:
        super().__init__(requests)
        self.open = 0
        self.untouched = False

    def __bool__(self) -> bool:
        """Return True if the scan may go on."""
        return self.open > 0 and len(self) > 0

    def pop_request(self) -> Request:
        """Take the first request through the gate."""
        self.open -= 1
        return self.popleft()

    def add_request(self, request: Request) -> None:
        """Add a request at the end."""
        self.untouched = False
        super().add_request(request)

    def prepend_request(self, request: Request) -> None:
        """Add a request in front."""
        self.untouched = False
        super().prepend_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Add requests in front."""
        self.untouched = False
        super().prepend_requests(requests)

    def remove_request(self, request: Request) -> None:
        """Remove a request."""
        self.untouched = False
        super().remove_request(request)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Remove requests."""
        self.untouched = False
        super().remove_requests(requests)

    def arrange(self, first: list[Request], rest: list[Request]) -> None:
        """Open the gate for `first`, in this order, with `rest` behind it; together they are the queue."""
        self.clear()
        self.extend(first)
        self.extend(rest)
        self.open, self.untouched = len(first), True
