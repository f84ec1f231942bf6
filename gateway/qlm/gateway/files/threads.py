"""Threads for calls that may hang: the end of the process does not wait for them."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from threading import Lock, Thread
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DaemonThreads(Executor):
    """Up to so many threads, which are made as they are needed.

    Those of `ThreadPoolExecutor` are joined when the process ends, with all calls that still wait for one.
    """

    def __init__(self, threads_max: int, name: str) -> None:
        """Make no thread yet."""
        self._threads_max = threads_max
        self._name = name
        self._calls = SimpleQueue[Callable[[], None]]()
        self._lock = Lock()
        self._threads = 0
        self._free = 0

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call a function in a thread, once one is free."""
        future = Future[T]()

        def call() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    result = fn(*args, **kwargs)
                except BaseException as error:  # for the one that waits for the call
                    future.set_exception(error)
                else:
                    future.set_result(result)

        with self._lock:
            self._free -= 1  # below 0: calls that wait
            new = self._free < 0 and self._threads < self._threads_max
            self._threads += new
            self._free += new
        self._calls.put(call)
        if new:
            Thread(target=self._work, name=self._name, daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            call = self._calls.get()
            call()
            del call  # it holds arguments and result
            with self._lock:
                self._free += 1
