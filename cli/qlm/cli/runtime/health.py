"""Health of broker and store as seen by one process: periodic probes, and counts of failed calls."""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

from prometheus_client import CollectorRegistry, Counter, Gauge

from qlm.cli.runtime.backends import Backends
from qlm.domain.errors import BrokerUnavailableError, QlmError, StoreUnavailableError
from qlm.domain.ports.broker import Broker
from qlm.domain.ports.published import operation
from qlm.domain.ports.store import Store
from qlm.domain.shell.faults import FaultLog, text_of
from qlm.domain.shell.outage import Outage
from qlm.domain.shell.tasks import end_tasks

_log = logging.getLogger("qlm.cli")

PROBE_S: Final = 5.0
"""Time between probes of broker and store."""

PROBE_TIMEOUT_S: Final = 2.0
"""A server that does not answer within this time counts as down."""

OK: Final = "ok"

_OPERATIONS: Final = MappingProxyType(
    {
        "acquire_leadership": "lead",
        "expire_leases": "reap",
        "publish_history": "keep_history",
        "publish_plan": "keep_plan",
        "publish_signal": "keep_signal",
        "published_history": "history",
        "published_plan": "kept_plan",
        "published_signal": "kept_signal",
        "queue_position": "queue_place",
        "report_unplaced": "say_unplaced",
    }
)
"""Values of the label `operation` that differ from the name of the call: exported values do not change."""

P = TypeVar("P")
S = TypeVar("S", bound=Store)


@dataclass(frozen=True, slots=True)
class ServerHealth:
    """Result of probing broker and store: `ok`, or the problem."""

    broker: str
    store: str


class Health:
    """Monitor of the broker and the store of one process.

    Attributes:
        store_errors: Failed calls of the store, by operation.
        store_outage: Log of its outages.
        broker_outage: Log of the outages of the broker.
    """

    def __init__(self, registry: CollectorRegistry, faults: FaultLog) -> None:
        """Register the metrics; `watching` starts the probes.

        Args:
            registry: Registry for the metrics.
            faults: Failures of the process.
        """
        self._faults = faults
        self._broker_up = Gauge(
            "qlm_broker_up", "1 if the broker answers this process, and stores messages", registry=registry
        )
        self._store_up = Gauge(
            "qlm_store_up", "1 if the store answers this process, and can write", registry=registry
        )
        about = "Calls that failed because the {} was away, by operation"
        self._broker_errors = Counter(
            "qlm_broker_errors", about.format("broker"), ("operation",), registry=registry
        )
        self.store_errors = Counter(
            "qlm_store_errors", about.format("store"), ("operation",), registry=registry
        )
        self.store_outage = Outage("store")
        self.broker_outage = Outage("broker")
        self._backends: Backends | None = None
        self._open: list[Broker] = []
        self._own: Broker | None = None
        self._opening = asyncio.Lock()

    @asynccontextmanager
    async def watching(self, backends: Backends) -> AsyncIterator[Backends]:
        """Probe these backends while inside; yield them with failed calls counted."""
        self._backends = backends
        probing = asyncio.create_task(self._probe_forever())
        store = counted_store(backends.store, self)
        try:
            yield replace(backends, store=store, open_broker=partial(self._open_broker, backends))
        finally:
            await end_tasks([probing])
            own, self._own, self._backends = self._own, None, None
            if own is not None:
                await own.close()

    async def _probe_forever(self) -> None:
        while True:
            await self.probe()
            await asyncio.sleep(PROBE_S)

    async def probe(self) -> ServerHealth:
        """Probe both now."""
        backends = self._backends
        if backends is None:
            health = ServerHealth("not connected", "not connected")
        else:
            probes = (
                self._result("broker", partial(self._probe_broker, backends)),
                self._result("store", backends.store.probe),
            )
            health = ServerHealth(*await asyncio.gather(*probes))
        self._broker_up.set(health.broker == OK)
        self._store_up.set(health.store == OK)
        return health

    async def _probe_broker(self, backends: Backends) -> None:
        """Probe over a client that is in use; without one, over a client for probes."""
        async with self._opening:  # two probes at once would each open one
            if not self._open and self._own is None:
                self._own = await backends.open_broker()
            broker = self._open[-1] if self._open else self._own
        assert broker is not None
        await broker.probe()

    async def _open_broker(self, backends: Backends) -> Broker:
        try:
            broker = await backends.open_broker()
        except BrokerUnavailableError:
            self._broker_errors.labels("connect").inc()
            raise
        self._open.append(broker)
        return _counted(broker, BrokerUnavailableError, self._broker_errors, self._closed, self.broker_outage)

    def _closed(self, broker: object) -> None:
        self._open = [each for each in self._open if each is not broker]

    async def _result(self, server: str, probe: Callable[[], Awaitable[object]]) -> str:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                await probe()
        except TimeoutError:
            return f"no answer within {PROBE_TIMEOUT_S:g} s"
        except QlmError as error:
            return str(error)
        except Exception as error:  # a bug: further probes may find the server well
            self._faults.note(_log, error, "the %s cannot be probed", server)
            return text_of(error)
        return OK


def counted_store(store: S, health: Health) -> S:
    """Return the store with failed calls counted by `health`."""
    return _counted(store, StoreUnavailableError, health.store_errors, outage=health.store_outage)


class _Counted:
    """Proxy of a port that counts the calls failing with one error class."""

    def __init__(
        self,
        port: object,
        error: type[QlmError],
        errors: Counter,
        closed: Callable[[object], None] | None,
        outage: Outage | None,
    ) -> None:
        self._port = port
        self._error = error
        self._errors = errors
        self._closed = closed
        self._outage = outage

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)
        if name.endswith("_now"):
            return self._call_now(name, method)
        if not inspect.iscoroutinefunction(method):
            return method
        made = self._close(method) if name == "close" else self._call(name, method)
        setattr(self, name, made)  # the next access finds it directly
        return made

    def _call_now(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            try:
                return method(*args)
            except self._error as error:
                self._failed(name.removesuffix("_now"), error)
                raise

        self.__dict__[name] = call
        return call

    def _failed(self, name: str, error: Exception) -> None:
        self._errors.labels(name).inc()
        if self._outage is not None:
            self._outage.failed(asyncio.get_running_loop().time(), error)

    def _call(self, name: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            try:
                answer = await method(*args, **kwargs)
            except self._error as error:
                called = operation(name, args)
                self._failed(_OPERATIONS.get(called, called), error)
                raise
            if self._outage is not None and self._outage.lasts:
                self._outage.worked(asyncio.get_running_loop().time())
            return answer

        return call

    def _close(self, method: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        async def close() -> None:
            if self._closed is not None:
                self._closed(self._port)
            await method()

        return close


def _counted(
    port: P,
    error: type[QlmError],
    errors: Counter,
    closed: Callable[[object], None] | None = None,
    outage: Outage | None = None,
) -> P:
    return cast("P", _Counted(port, error, errors, closed, outage))
