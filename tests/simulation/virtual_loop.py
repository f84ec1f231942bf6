"""Deterministic asyncio event loop: virtual time advances, at once, only when no callback is ready."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import Context, ContextVar
from heapq import heappop, heappush
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EPOCH_NS: Final = 1_600_000_000 * 1_000_000_000
"""Start of virtual time, nanoseconds since 1970; far from 0, so that no code takes it for a missing time."""


class StandstillError(RuntimeError):
    """All tasks wait, and no timer is set: a deadlock."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs coroutines in virtual time, always in the same order.

    Timers of equal time run in the order in which they were set. Work for a thread runs at once. There is no
    network, no signal and no child process.

    Attributes:
        now_ns: Virtual nanoseconds since 1970.
        owner: Tells from a callback's context to whom it belongs.
    """

    # Not built on asyncio's own loop: its selector, threads and checks of slow callbacks would take most of
    # the time of a trial.

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = EPOCH_NS
        self._now_s = 0.0
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle | asyncio.Future[None]]] = []
        self._timers_set = 0
        self.owner: ContextVar[Any] | None = None
        self._held: dict[object, deque[asyncio.Handle]] = {}

    def hold(self, owner: object) -> None:
        """Run no callback of an owner until `let_go`."""
        self._held.setdefault(owner, deque())

    def let_go(self, owner: object) -> None:
        """Run the callbacks of an owner that was held, in the order in which they became due."""
        self._ready.extend(self._held.pop(owner, ()))

    def time(self) -> float:
        """Virtual seconds since the beginning."""
        return self._now_s

    def pause(self, seconds: float) -> "asyncio.Future[None]":
        """Return a future that is done after `seconds` of virtual time, unless it is set before."""
        # Awaiting it costs a third of `asyncio.sleep`; most events of a trial are messages in transit.
        future: asyncio.Future[None] = asyncio.Future(loop=self)
        self._timers_set += 1
        heappush(self._timers, (self._now_s + seconds, self._timers_set, future))
        return future

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Schedule a callback behind all that are ready."""
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
        """Schedule a callback at a time; at once if that has passed."""
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
        """Schedule a callback after `delay` virtual seconds."""
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> "asyncio.Future[T]":
        """Run the function now: no seed could decide the time that a thread takes."""
        future: asyncio.Future[T] = asyncio.Future(loop=self)
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def _run_once(self) -> None:
        """Run ready callbacks, and advance the time when there are none, until stopped."""
        ready = self._ready
        while True:
            if not ready:
                self._advance_time()
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle._cancelled and not (self._held and self._holds(handle)):
                    handle._run()
            if self._stopping:  # type: ignore[attr-defined]  # asyncio's own, unknown to its stubs
                return

    def _holds(self, handle: asyncio.Handle) -> bool:
        """Keep a callback if its owner stands still."""
        assert self.owner is not None, "no callback waits without owners"
        owner = handle._context.get(self.owner)  # type: ignore[attr-defined]  # asyncio's own, unknown to its stubs
        waiting = self._held.get(owner)
        if waiting is None:
            return False
        waiting.append(handle)
        return True

    def _advance_time(self) -> None:
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
            raise StandstillError("all tasks wait for one another")

    def _set_time(self, now_s: float) -> None:
        if now_s > self._now_s:
            self._now_s = now_s
            self.now_ns = EPOCH_NS + round(now_s * 1e9)

    def _asyncgen_firstiter_hook(self, generator: object) -> None:
        """Keep no list of generators: this loop never closes them."""

    def _process_events(self, event_list: object) -> None:
        """Do nothing: there is no selector."""

    def _write_to_self(self) -> None:
        """Do nothing: the loop never sleeps."""
