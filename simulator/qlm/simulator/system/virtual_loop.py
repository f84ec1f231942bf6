"""An asyncio event loop without a world: time passes only when nothing is left to do, and then at once."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import Context
from heapq import heappop, heappush
from typing import Final, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EPOCH_NS: Final = 1_600_000_000 * 1_000_000_000
"""Where virtual time begins, nanoseconds since the epoch: far from 0, so that no time is taken for none."""


class StandstillError(RuntimeError):
    """Everybody waits, and nothing is due at any time: nothing would ever happen again."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs coroutines in virtual time, always in the same order.

    Timers of one moment go off in the order in which they were set. What would run on a thread runs at
    once. There is no network, no signal and no child process. What asyncio's own loop does besides (slow
    callbacks, threads, a selector) is left out: most of a trial would be spent on that.

    Attributes:
        now_ns: Virtual nanoseconds since the epoch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = EPOCH_NS
        self._now_s = 0.0
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle | asyncio.Future[None]]] = []
        self._timers_set = 0

    def time(self) -> float:
        """Virtual seconds since the beginning."""
        return self._now_s

    def pause(self, seconds: float) -> "asyncio.Future[None]":
        """Make a future that is done after so many virtual seconds, if nobody does it before.

        To await it is `asyncio.sleep` at a third of the cost; most of what happens is a message on its way.
        """
        future: asyncio.Future[None] = asyncio.Future(loop=self)
        self._timers_set += 1
        heappush(self._timers, (self._now_s + seconds, self._timers_set, future))
        return future

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Call it after all that is to be called now."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call it at a moment; at once if that has passed."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers_set += 1
        heappush(self._timers, (when, self._timers_set, timer))
        return timer

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call it after so many virtual seconds."""
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> "asyncio.Future[T]":
        """Run it here and now: how long a thread takes is nothing that a seed could decide."""
        future: asyncio.Future[T] = asyncio.Future(loop=self)
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def _run_once(self) -> None:
        """Call what is ready, and let the time pass until a timer is due when nothing is, until stopped."""
        ready = self._ready
        while True:
            if not ready:
                self._pass_time()
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._run()
            if self._stopping:  # type: ignore[attr-defined]  # asyncio's own, unknown to its stubs
                return

    def _pass_time(self) -> None:
        timers = self._timers
        while timers:
            when, _, timer = heappop(timers)
            if isinstance(timer, asyncio.Future):
                if timer.done():
                    continue
                self._set_time(when)
                timer.set_result(None)
                return
            if not timer._cancelled:
                self._set_time(when)
                self._ready.append(timer)
                return
        if not self._stopping:  # type: ignore[attr-defined]  # asyncio's own, unknown to its stubs
            raise StandstillError("every task waits for another one")

    def _set_time(self, now_s: float) -> None:
        if now_s > self._now_s:
            self._now_s = now_s
            self.now_ns = EPOCH_NS + round(now_s * 1e9)

    def _asyncgen_firstiter_hook(self, generator: object) -> None:
        """Keep no list of generators: a loop that ends for good closes none."""

    def _process_events(self, event_list: object) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody sleeps who would have to be woken."""
