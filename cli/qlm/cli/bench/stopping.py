"""The stop of a measurement: first no further requests are sent, then those without an answer are given up.

So the requests that were sent before are rated as those of a shorter run, and not only the fast ones.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress


class Stop:
    """The stop of a measurement, asked for once or twice.

    Attributes:
        asked: No further requests are sent.
        gives_up: Those that were sent are given up.
    """

    def __init__(self) -> None:
        self.asked = False
        self.gives_up = False
        self._sending: set[asyncio.Timeout] = set()
        self._open: set[asyncio.Timeout] = set()

    def ask(self) -> None:
        """Send nothing further; give up what was sent if that was asked before."""
        self.gives_up, self.asked = self.asked, True
        now_s = asyncio.get_running_loop().time()
        for limit in self._open if self.gives_up else self._sending:
            limit.reschedule(now_s)

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Leave the block once the stop is asked for."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as limit, _among(self._sending, limit):
                yield

    @asynccontextmanager
    async def answered_by(self, at_s: float) -> AsyncIterator[None]:
        """Raise TimeoutError in the block at this time of the event loop, or once requests are given up."""
        async with asyncio.timeout_at(at_s) as limit, _among(self._open, limit):
            yield


@asynccontextmanager
async def _among(limits: set[asyncio.Timeout], limit: asyncio.Timeout) -> AsyncIterator[None]:
    limits.add(limit)
    try:
        yield
    finally:
        limits.discard(limit)


@contextmanager
def stopped_by_ctrl_c(stop: Stop, say: Callable[[str], None]) -> Iterator[None]:
    """Let Ctrl-C ask for the stop, and say what it does; a third one ends the process as usual.

    A process that ignores it, such as one in the background of a script, goes on to do so.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        stop.ask()
        if stop.gives_up:
            loop.remove_signal_handler(signal.SIGINT)
        else:
            say("stopping once all that was sent is answered; Ctrl-C again gives that up")

    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
