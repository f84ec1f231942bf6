"""Thread with its own event loop, and calls between it and the caller's event loop."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from qlm.broker.threads import Batcher
from qlm.domain.errors import BrokerUnavailableError
from qlm.domain.shell.tasks import end_tasks

R = TypeVar("R")

_Calls = list[Callable[[], None]]


class Bridge:
    """Calls between the caller's loop (`here`) and the thread's (`there`), with one wake-up per batch."""

    def __init__(self, name: str) -> None:
        """Start the thread; call this in the event loop that all calls come from."""
        self._here = asyncio.get_running_loop()
        self._there = asyncio.new_event_loop()
        self._to_there: Batcher[Callable[[], None]] = Batcher(self._here, partial(_wake, self._there))
        self._to_here: Batcher[Callable[[], None]] = Batcher(self._there, partial(_wake, self._here))
        self._open = True
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """True until `close`."""
        return self._open

    def there(self, call: Callable[[], None]) -> None:
        """Run a function in the thread's loop; for the caller's loop.

        Raises:
            BrokerUnavailableError: The bridge is closed.
        """
        if not self._open:
            raise BrokerUnavailableError("this broker client is closed")
        self._to_there.put(call)

    def here(self, call: Callable[[], None]) -> None:
        """Run a function in the caller's loop; for the thread's loop."""
        self._to_here.put(call)

    async def call(
        self, work: Callable[[], Coroutine[Any, Any, R]], undo: Callable[[R], None] | None = None
    ) -> R:
        """Run a coroutine there and return its result, or raise its exception.

        Args:
            work: Makes the coroutine.
            undo: Runs there with the result if the caller was cancelled meanwhile.
        """
        answer: asyncio.Future[R] = self._here.create_future()

        def finish(result: R) -> None:
            if not answer.done():
                answer.set_result(result)
            elif undo is not None and self._open:
                self.there(partial(undo, result))

        def start() -> None:
            task = self._there.create_task(self._run_there(work, finish, partial(_fail, answer)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        self.there(start)
        try:
            return await answer
        except asyncio.CancelledError:
            if _has_result(answer):
                finish(answer.result())  # it came in the moment of the cancellation
            raise

    async def _run_there(
        self,
        work: Callable[[], Coroutine[Any, Any, R]],
        finish: Callable[[R], None],
        fail: Callable[[Exception], None],
    ) -> None:
        try:
            result = await work()
        except asyncio.CancelledError:
            self.here(partial(fail, BrokerUnavailableError("this broker client was closed")))
        except Exception as error:
            self.here(partial(fail, error))
        else:
            self.here(partial(finish, result))

    async def close(self) -> None:
        """End the thread, cancelling its tasks."""
        if not self._open:
            return
        self._to_there.flush()
        self._open = False
        self._there.call_soon_threadsafe(self._there.stop)
        await self._here.run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        asyncio.set_event_loop(self._there)
        self._there.run_forever()
        self._there.run_until_complete(end_tasks(asyncio.all_tasks(self._there)))
        self._to_here.flush()
        self._there.run_until_complete(self._there.shutdown_default_executor())
        self._there.close()


def _has_result(answer: asyncio.Future[Any]) -> bool:
    return answer.done() and not answer.cancelled() and answer.exception() is None


def _fail(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


def _wake(loop: asyncio.AbstractEventLoop, calls: _Calls) -> None:
    with contextlib.suppress(RuntimeError):  # that loop is closed: no caller waits any more
        loop.call_soon_threadsafe(_call_all, calls)


def _call_all(calls: _Calls) -> None:
    for call in calls:
        call()
