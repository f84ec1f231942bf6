"""Failures of single calls: each port of each process can be made to raise at any of its calls."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar, cast

from qlm.domain.errors import (
    BrokerUnavailableError,
    DeliveryLostError,
    EngineUnavailableError,
    StorageUnavailableError,
    StoreDataError,
    StoreUnavailableError,
)
from qlm.domain.ports.published import operation

P = TypeVar("P")

STREAMS: Final = frozenset({"outputs", "notices", "wakeups", "generate"})
"""Operations that iterate instead of returning an answer."""

NOT_CALLS: Final = frozenset({"append_now", "get_now", "lease_now", "engine", "up", "hangs"})
"""Attributes that ask nothing of a server."""


class Site(NamedTuple):
    """Calls that may fail: those of one operation on one port, in one kind of process."""

    part: str
    port: str
    operation: str


EVERY: Final = "*"
"""In place of an operation: all calls of a port, one after the other, as while its server is away."""


class When(StrEnum):
    """Moment of a failure."""

    BEFORE = "before"
    """The call has no effect."""

    AFTER = "after"
    """The call was done, and its answer is lost."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Consecutive calls that fail.

    Attributes:
        site: The calls.
        error: Class of the error.
        when: Moment of the failure.
        first: Number of calls before the first that fails.
        count: Number of calls that fail.
    """

    site: Site
    error: type[Exception]
    when: When
    first: int
    count: int


ERRORS: Final = {
    "store": (StoreUnavailableError, StoreDataError, ZeroDivisionError),
    "broker": (BrokerUnavailableError, ZeroDivisionError),
    "engine": (EngineUnavailableError, ZeroDivisionError),
    "unit": (EngineUnavailableError, ZeroDivisionError),
    "storage": (StorageUnavailableError, ZeroDivisionError),
}
"""Errors of each port, one of each kind that it may raise; the last is a bug."""

CONFIRMATIONS: Final = frozenset({"ack", "requeue"})


def errors_of(site: Site) -> tuple[type[Exception], ...]:
    """Return the errors to try at a site."""
    return (*ERRORS[site.port], *((DeliveryLostError,) if site.operation in CONFIRMATIONS else ()))


class Injector:
    """Counts the calls of all processes, and makes those of one failure raise.

    Attributes:
        failure: What to fail; None for nothing.
        calls: Number of calls by site.
        hits: Number of calls that failed.
    """

    def __init__(self, failure: Failure | None = None) -> None:
        self.failure = failure
        self.calls: Counter[Site] = Counter()
        self._of_ports: Counter[Site] = Counter()
        self.hits = 0

    def begin_anew(self, failure: Failure | None) -> None:
        """Count all calls from zero, and make those of another failure raise."""
        self.failure, self.hits = failure, 0
        self.calls.clear()
        self._of_ports.clear()

    def wrap(self, part: str, port: str, served: P) -> P:
        """Return a port whose calls are counted, and may fail."""
        return cast("P", _Port(self, part, port, served))

    def begin(self, site: Site) -> Callable[[When], None]:
        """Count a call; return what raises its failure if its moment is given."""
        number = self.calls[site]
        self.calls[site] += 1
        failure = self.failure
        whole_port = site._replace(operation=EVERY)
        if failure is not None and failure.site == whole_port:
            number = self._of_ports[whole_port]
            self._of_ports[whole_port] += 1
        elif failure is None or failure.site != site:
            return _nothing
        if not failure.first <= number < failure.first + failure.count:
            return _nothing
        return lambda when: self._fail(failure, when, site.operation)

    def _fail(self, failure: Failure, when: When, operation: str) -> None:
        if when is failure.when:
            self.hits += 1
            raise failure.error(f"injected {when} {operation}")


def _nothing(when: When) -> None:
    """Let a call pass."""


class _Port:
    def __init__(self, injector: Injector, part: str, port: str, served: Any) -> None:
        self._injector = injector
        self._part = part
        self._port = port
        self._served = served

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._served, name)
        if name in NOT_CALLS:
            return self._injector.wrap(self._part, "engine", found) if name == "engine" else found
        wrapped = self._stream(name, found) if name in STREAMS else self._call(name, found)
        self.__dict__[name] = wrapped
        return wrapped

    def _site(self, name: str, arguments: Sequence[object]) -> Site:
        return Site(self._part, self._port, operation(name, arguments))

    def _call(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*arguments: Any, **named: Any) -> Any:
            fail = self._injector.begin(self._site(name, arguments))
            fail(When.BEFORE)
            answer = await method(*arguments, **named)
            fail(When.AFTER)
            return answer

        return call

    def _stream(self, name: str, method: Callable[..., Any]) -> Callable[..., AsyncIterator[Any]]:
        async def stream(*arguments: Any, **named: Any) -> AsyncIterator[Any]:
            fail = self._injector.begin(self._site(name, arguments))
            fail(When.BEFORE)
            async for item in method(*arguments, **named):
                yield item
                fail(When.AFTER)

        return stream
