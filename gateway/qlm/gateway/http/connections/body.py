"""The body of an answer under way, as its connection has it: written to, and told when the client leaves.

Beside the ASGI application, which has a task for each request: a token then costs one write, and no task has
to wait for the client to leave.
"""

from collections.abc import Callable
from typing import Any, Final

BODY: Final = "qlm.body"
"""Key of the scope of a request."""


class Body:
    """Body of the answer to one request of a connection."""

    def __init__(self, cycle: Any) -> None:
        """Begin with uvicorn's request `cycle`."""
        self._cycle = cycle
        self._left: Callable[[], None] | None = None

    def write(self, part: bytes) -> bool:
        """Write a part at once; return False if it has to go through ASGI, and nothing was written.

        That is so before the head of the answer, without chunks (HTTP/1.0), and while the client reads too
        slowly.
        """
        cycle = self._cycle
        if cycle.flow.write_paused or not cycle.chunked_encoding or cycle.response_complete:
            return False
        if cycle.disconnected or cycle.transport.is_closing():
            return False
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(part), part))
        return True

    def cut(self) -> None:
        """Close the connection in the middle of the answer, after the bytes already written.

        The client sees that the answer is not whole.
        """
        self._cycle.disconnected = True  # what ASGI still sends is dropped
        self._cycle.transport.close()

    def watch(self, left: Callable[[], None] | None) -> None:
        """Call `left` when the client disconnects before the end, at once if it has; None ends the watch."""
        self._left = left
        cycle = self._cycle
        if cycle.disconnected:
            self.leave()
        elif left is not None and not cycle.transport.is_closing():
            cycle.flow.resume_reading()  # the last part of a large body has paused it

    def leave(self) -> None:
        """Note that the client has disconnected."""
        left, self._left = self._left, None
        if left is not None:
            left()
