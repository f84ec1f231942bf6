"""Real parts that fail for a while: a wrapper that raises in chosen methods, before or after they act."""

import asyncio
import inspect
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, TypeVar, cast

from qlm.domain.ports.published import operation

T = TypeVar("T")


class Faults:
    """Which methods fail at present, and how often each has failed.

    Those of `publish` and `published` are told apart by kind: `publish_plan`.

    Attributes:
        raised: Errors raised so far, by method.
        lingering: Calls that wait for their answer, by method, if it drops cancellations.
    """

    def __init__(self) -> None:
        self.raised: Counter[str] = Counter()
        self._before: dict[str, Exception] = {}
        self._after: dict[str, Exception] = {}
        self.lingering: Counter[str] = Counter()
        self._drops: Counter[str] = Counter()

    def fail(self, error: Exception, *methods: str) -> None:
        """Let methods raise this without having done anything, until `heal`."""
        self._before |= dict.fromkeys(methods, error)

    def fail_unheard(self, error: Exception, *methods: str) -> None:
        """Let methods do their work and then raise this, until `heal`: the answer is lost."""
        self._after |= dict.fromkeys(methods, error)

    def drop_cancellations(self, times: int, *methods: str) -> None:
        """Let answers come late, and each method drop so many cancellations: it returns its answer instead.

        `asyncio.wait_for` before Python 3.12 does so.
        """
        self._drops |= dict.fromkeys(methods, times)

    async def linger(self, method: str) -> None:
        """Return after a second; at once for a cancellation that is dropped."""
        if method not in self._drops:
            return
        self.lingering[method] += 1
        try:
            await asyncio.sleep(1.0)
        except asyncio.CancelledError:
            if self._drops[method] == 0:
                raise
            self._drops[method] -= 1
        finally:
            self.lingering[method] -= 1

    def heal(self) -> None:
        """Let everything work again."""
        self._before.clear()
        self._after.clear()

    def before(self, method: str) -> None:
        """Raise if `method` is not reached at present."""
        self._raise(method, self._before)

    def after(self, method: str) -> None:
        """Raise if the answer of `method` is lost at present."""
        self._raise(method, self._after)

    def _raise(self, method: str, errors: dict[str, Exception]) -> None:
        if method in errors:
            self.raised[method] += 1
            raise errors[method]


class _Flaky:
    """Passes everything on to a real object, through its faults."""

    def __init__(self, real: object, faults: Faults) -> None:
        self._real = real
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._real, name)
        if inspect.iscoroutinefunction(method):
            return self._call(name, method)
        if name.endswith("_now"):
            return partial(self._now, name.removesuffix("_now"), method)
        if name in ("notices", "wakeups", "outputs"):
            return lambda *arguments: self._iterate(name, method(*arguments))
        return method

    def _call(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*arguments: Any, **named: Any) -> Any:
            called = operation(name, arguments)
            self._faults.before(called)
            answer = await method(*arguments, **named)
            self._faults.after(called)
            await self._faults.linger(called)
            return answer

        return call

    def _now(self, name: str, method: Callable[..., Any], *arguments: Any) -> Any:
        self._faults.before(name)
        answer = method(*arguments)
        if answer is not None:
            self._faults.after(name)
        return answer

    async def _iterate(self, name: str, items: AsyncIterator[Any]) -> AsyncIterator[Any]:
        self._faults.before(name)
        async for item in items:
            self._faults.before(name)
            yield item


def flaky(real: T, faults: Faults) -> T:
    """Wrap a real store or broker so that `faults` come between it and its user."""
    return cast(T, _Flaky(real, faults))


async def until(condition: Callable[[], Any], timeout_s: float = 10.0) -> None:
    """Wait until a condition holds; it may be a coroutine function."""
    async with asyncio.timeout(timeout_s):
        while True:
            tracked = condition()
            if await tracked if inspect.isawaitable(tracked) else tracked:
                return
            await asyncio.sleep(0.002)


def wait_until(
    condition: Callable[[], Any], what: str, timeout_s: float = 60.0, pause_s: float = 0.1
) -> None:
    """Block until a condition holds, for tests without an event loop."""
    give_up_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up_s, f"not within {timeout_s} s: {what}"
        time.sleep(pause_s)
