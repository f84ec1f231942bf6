"""The open connections of a listener: which to accept, which to close for others, and what to log."""

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from qlm.gateway.core.connection_limits import Breach, ConnectionLimits, client_of

C = TypeVar("C", bound=Hashable)

NOTE_S: Final = 60.0
"""Time between two log lines about one kind of refusal."""

FIRST_BYTES_S: Final = 0.1
"""Time in which a new connection is not closed for others: its request comes with it, but is read later.

Short, so that clients who connect and say nothing shut no client out.
"""


@dataclass(frozen=True, slots=True)
class Admission(Generic[C]):
    """Decision on a new connection.

    Attributes:
        breach: The limit for which it is refused; None: it is accepted.
        closed: A connection to be closed in its favour.
    """

    breach: Breach | None = None
    closed: C | None = None


class OpenConnections(Generic[C]):
    """Open connections of one listener, and the bytes of unfinished bodies on them."""

    def __init__(self, limits: ConnectionLimits) -> None:
        """Begin without a connection."""
        self._limits = limits
        self._client = client_of(limits.shared_addresses)
        self._open: dict[C, str | None] = {}
        self._of_client: Counter[str] = Counter()
        self._new: OrderedDict[C, float] = OrderedDict()
        self._waiting: OrderedDict[C, None] = OrderedDict()
        self._unfinished: OrderedDict[C, int] = OrderedDict()
        self._unfinished_bytes = 0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of unfinished bodies."""
        return self._unfinished_bytes

    def admit(self, connection: C, address: str | None, now_s: float) -> Admission[C]:
        """Decide on a new connection from an address, if it has one, and count it if it is accepted."""
        client = None if address is None else self._client(address)
        if client is not None and self._of_client[client] >= self._limits.per_address_max:
            return Admission(breach=Breach.ADDRESS)
        closed = None
        if len(self._open) >= self._limits.connections_max:
            closed = self._dispensable(now_s)
            if closed is None:
                return Admission(breach=Breach.CONNECTIONS)
            self.forget(closed)
        self._open[connection] = client
        self._new[connection] = now_s
        if client is not None:
            self._of_client[client] += 1
        return Admission(closed=closed)

    def wait(self, connection: C) -> None:
        """Note that a connection waits for its next request."""
        if connection in self._open:
            self._waiting[connection] = None

    def busy(self, connection: C) -> None:
        """Note that a request comes on a connection."""
        self._new.pop(connection, None)
        self._waiting.pop(connection, None)

    def _dispensable(self, now_s: float) -> C | None:
        """Return the connection to close for a new one, if any: one without any request first."""
        oldest = next(iter(self._new), None)
        if oldest is not None and now_s - self._new[oldest] >= FIRST_BYTES_S:
            return oldest
        return next(iter(self._waiting), None)

    def receive(self, connection: C, count: int) -> Iterator[C]:
        """Count bytes of an unfinished body; yield the connections to refuse for them."""
        self._unfinished[connection] = self._unfinished.get(connection, 0) + count
        self._unfinished_bytes += count
        while self._unfinished_bytes > self._limits.unfinished_bytes_max:
            oldest = next(iter(self._unfinished))
            self.finish(oldest)
            yield oldest

    def finish(self, connection: C) -> None:
        """Count a body no longer: it is whole, or its request is not served."""
        self._unfinished_bytes -= self._unfinished.pop(connection, 0)

    def forget(self, connection: C) -> None:
        """Count a connection no longer."""
        self.finish(connection)
        self.busy(connection)
        client = self._open.pop(connection, None)
        if client is not None:
            self._of_client[client] -= 1
            if not self._of_client[client]:
                del self._of_client[client]


class RefusalNotes:
    """When to log refusals: the first of a kind, and how many more there were each minute."""

    def __init__(self) -> None:
        """Begin without a refusal."""
        self._since_s: dict[Breach, float] = {}
        self._more: Counter[Breach] = Counter()

    def first(self, kind: Breach, now_s: float) -> bool:
        """Note a refusal; return True if it is to be logged, False if it is counted."""
        if kind not in self._since_s:
            self._since_s[kind] = now_s
            return True
        self._more[kind] += 1
        return False

    def due(self, now_s: float) -> list[tuple[Breach, int]]:
        """Return the kinds whose minute is over, with the number of refusals to log."""
        over = [kind for kind, since_s in self._since_s.items() if now_s - since_s >= NOTE_S]
        counts = [(kind, self._more.pop(kind, 0)) for kind in over]
        for kind, more in counts:
            if more:
                self._since_s[kind] = now_s
            else:
                del self._since_s[kind]
        return [(kind, more) for kind, more in counts if more]
