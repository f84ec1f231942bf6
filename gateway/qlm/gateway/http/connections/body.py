"""The body of an answer under way, as its connection has it: written to, and told when the client leaves.

Beside the ASGI application, which has a task for each request: a token then costs one write, and no task has
to wait for the client to leave.
"""

from collections.abc import Callable
from typing import Any, Final
from weakref import ref

BODY: Final = "qlm.body"
"""Key of the scope of a request."""


class Body:
    """Body of the answer to one request of a connection."""

    def __init__(self, cycle: Any) -> None:
        """Begin with uvicorn's request `cycle`.

        It is referred to weakly: its scope has this object, and the cycle collector would have to find both.
        Until the request has ended, its task keeps it.
        """
        self._cycle = ref(cycle)
        self._left: Callable[[], None] | None = None

    def write(self, part: bytes) -> bool:
        """Write a part at once; return False if it has to go through ASGI, and nothing was written.

        That is so before the head of the answer, without chunks (HTTP/1.0), while the client reads too
        slowly, and once the request has ended.
        """
        cycle = self._cycle()
        if cycle is None or cycle.flow.write_paused or not cycle.chunked_encoding or cycle.response_complete:
            return False
        if cycle.disconnected or cycle.transport.is_closing():
            return False
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(part), part))
        return True

    def cut(self) -> None:
        """Close the connection in the middle of the answer, after the bytes already written.

        The client sees that the answer is not whole.
        """
        if (cycle := self._cycle()) is not None:
            cycle.disconnected = True  # what ASGI still sends is dropped
            cycle.transport.close()

    def watch(self, left: Callable[[], None] | None) -> None:
        """Call `left` when the client disconnects before the end, at once if it has; None ends the watch."""
        self._left = left
        cycle = self._cycle()
        if cycle is None or cycle.disconnected:
            self.leave()
        elif left is not None and not cycle.transport.is_closing():
            cycle.flow.resume_reading()  # the last part of a large body has paused it

    def leave(self) -> None:
        """Note that the client has disconnected."""
        left, self._left = self._left, None
        if left is not None:
            left()
