"""How broker and store are, as one process finds them: asked now and then, and told by calls that fail."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar, cast

from prometheus_client import CollectorRegistry, Counter, Gauge

from qlm.cli.parts import Parts
from qlm.domain.errors import BrokerUnavailableError, QlmError, StoreUnavailableError
from qlm.domain.ids import QueueName
from qlm.domain.ports.broker import Broker
from qlm.domain.ports.store import Store

PROBE_S: Final = 5.0
"""Broker and store are asked this often."""

PROBE_TIMEOUT_S: Final = 2.0
"""One that has not answered within this counts as down."""

OK: Final = "ok"
_QUEUE: Final = QueueName("qlm.ingress")

P = TypeVar("P")
S = TypeVar("S", bound=Store)


@dataclass(frozen=True, slots=True)
class Vitals:
    """How broker and store answered: `ok`, or what is wrong."""

    broker: str
    store: str


class Health:
    """Watches the broker and the store of one process.

    Attributes:
        store_errors: Calls of the store that failed, by operation.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the metrics; `watching` says what to watch."""
        self._broker_up = Gauge("qlm_broker_up", "1 if the broker answers this process", registry=registry)
        self._store_up = Gauge("qlm_store_up", "1 if the store answers this process", registry=registry)
        about = "Calls that failed because the {} was away, by operation"
        self._broker_errors = Counter(
            "qlm_broker_errors", about.format("broker"), ("operation",), registry=registry
        )
        self.store_errors = Counter(
            "qlm_store_errors", about.format("store"), ("operation",), registry=registry
        )
        self._parts: Parts | None = None
        self._open: list[Broker] = []
        self._own: Broker | None = None
        self._asking = asyncio.Lock()

    @asynccontextmanager
    async def watching(self, parts: Parts) -> AsyncIterator[Parts]:
        """Watch these parts while inside; yields them such that calls which fail are counted."""
        self._parts = parts
        asking = asyncio.create_task(self._ask())
        store = counted_store(parts.store, self)
        try:
            yield replace(parts, store=store, open_broker=partial(self._open_broker, parts))
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            own, self._own, self._parts = self._own, None, None
            if own is not None:
                await own.close()

    async def _ask(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(PROBE_S)

    async def look(self) -> Vitals:
        """Ask both now."""
        parts = self._parts
        if parts is None:
            vitals = Vitals("not connected", "not connected")
        else:
            ask_broker = partial(self._ask_broker, parts)
            vitals = Vitals(*await asyncio.gather(_answer(ask_broker), _answer(parts.store.incarnation)))
        self._broker_up.set(vitals.broker == OK)
        self._store_up.set(vitals.store == OK)
        return vitals

    async def _ask_broker(self, parts: Parts) -> None:
        """Ask over a connection that is in use; where there is none, over one of our own."""
        async with self._asking:  # else two who ask at once would each open one
            if not self._open and self._own is None:
                self._own = await parts.open_broker()
            broker = self._open[-1] if self._open else self._own
        assert broker is not None
        await broker.depth(_QUEUE)

    async def _open_broker(self, parts: Parts) -> Broker:
        try:
            broker = await parts.open_broker()
        except BrokerUnavailableError:
            self._broker_errors.labels("connect").inc()
            raise
        self._open.append(broker)
        return _counted(broker, BrokerUnavailableError, self._broker_errors, self._closed)

    def _closed(self, broker: object) -> None:
        self._open = [each for each in self._open if each is not broker]


async def _answer(ask: Callable[[], Awaitable[object]]) -> str:
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            await ask()
    except TimeoutError:
        return f"no answer within {PROBE_TIMEOUT_S:g} s"
    except QlmError as error:
        return str(error)
    return OK


def counted_store(store: S, health: Health) -> S:
    """Return the same store, whose failures `health` counts."""
    return _counted(store, StoreUnavailableError, health.store_errors)


class _Counted:
    """Passes all calls on to a port, and counts those that fail in one way."""

    def __init__(
        self, port: object, error: type[QlmError], errors: Counter, closed: Callable[[object], None] | None
    ) -> None:
        self._port = port
        self._error = error
        self._errors = errors
        self._closed = closed

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)
        if not inspect.iscoroutinefunction(method):
            return method
        made = self._close(method) if name == "close" else self._call(name, method)
        setattr(self, name, made)  # looked up once
        return made

    def _call(self, name: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return await method(*args, **kwargs)
            except self._error:
                self._errors.labels(name).inc()
                raise

        return call

    def _close(self, method: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        async def close() -> None:
            if self._closed is not None:
                self._closed(self._port)
            await method()

        return close


def _counted(
    port: P, error: type[QlmError], errors: Counter, closed: Callable[[object], None] | None = None
) -> P:
    return cast("P", _Counted(port, error, errors, closed))
