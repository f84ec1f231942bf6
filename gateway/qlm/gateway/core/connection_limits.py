"""Limits of a listener's connections: section `connections` of the configuration, and what keeps to it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

IPV6_CLIENT_BITS: Final = 64
"""Prefix of an IPv6 address that counts as one client: many have all addresses of such a network."""

NOTICE_S: Final = 2.0
"""Time for a client to read why it was refused, and to close the connection."""

UNREAD_BYTES_MAX: Final = 1024 * 1024
"""Bytes that a client may still send after its answer, or after its refusal."""

ADDRESSES_KEPT: Final = 4096
"""Addresses whose client is kept, since connections of one come again."""

_HEADER_FRAMING_BYTES: Final = 4
"""The colon, the blank and the end of a header's line."""


def _network(text: str) -> str:
    try:
        ip_network(text, strict=False)
    except ValueError as error:
        raise ValueError(f"has {text!r}; expected an IP address, or a network such as 10.0.0.0/8") from error
    return text


Network = Annotated[str, AfterValidator(_network)]
_Duration = Annotated[float, Field(gt=0, le=86_400)]


class ConnectionLimits(BaseModel):
    """Limits of the connections of a gateway. Those of sizes, counts and times hold for each HTTP listener.

    Attributes:
        connections_max: Open connections of a listener. Beyond, one without any request for 0.1 s is
            closed, else the one that has waited longest for its next request; without such a one, the new
            one is refused (503). Also for gRPC.
        per_address_max: Open connections from one address (IPv6: one /64 network); beyond, new ones are
            refused (503). With `http.behind_proxy` there is no such limit: addresses are those of proxies.
        shared_addresses: Addresses and networks of many clients each, such as proxies and this machine, to
            which `per_address_max` does not apply.
        url_bytes_max: Longest URL; beyond, 414.
        headers_max: Most headers of a request; beyond, 431.
        header_bytes_max: Size of all headers of a request; beyond, 431. For gRPC, of a call's metadata.
        headers_timeout_s: Time for URL and headers; beyond, 408. A connection without any request is closed
            after this time. For gRPC, time to set up a connection.
        body_timeout_s: Time for a body, to which its bytes at the pace of `body_bytes_per_s_min` are added;
            beyond, 408.
        body_bytes_per_s_min: Pace at which a body may always be sent.
        unfinished_bytes_max: Bytes of unfinished bodies on all connections of a listener. Beyond, the
            requests whose bodies have been coming for longest are refused (503).
        idle_timeout_s: Time between two requests on one connection, after which it is closed. For gRPC, time
            without a call.
        streams_max: Calls at a time on one connection of gRPC; further ones wait in the client.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    connections_max: int = Field(10_000, ge=1, le=1_000_000)
    per_address_max: int = Field(1000, ge=1, le=1_000_000)
    shared_addresses: tuple[Network, ...] = ("127.0.0.0/8", "::1")
    url_bytes_max: int = Field(8192, ge=256, le=1024 * 1024)
    headers_max: int = Field(100, ge=10, le=10_000)
    header_bytes_max: int = Field(32 * 1024, ge=1024, le=1024 * 1024)
    headers_timeout_s: _Duration = 10.0
    body_timeout_s: _Duration = 20.0
    body_bytes_per_s_min: float = Field(1024, ge=1, le=1e9)
    unfinished_bytes_max: int = Field(64 * 1024 * 1024, ge=64 * 1024)
    idle_timeout_s: _Duration = 75.0
    streams_max: int = Field(1000, ge=1, le=1_000_000)


class Breach(StrEnum):
    """Why a connection or a request is refused, mostly a limit, as the code of the answer."""

    URL = "url_too_long"
    HEADERS = "headers_too_large"
    HEADERS_LATE = "headers_timeout"
    BODY_LATE = "body_timeout"
    UNFINISHED = "too_many_unfinished_bodies"
    CONNECTIONS = "too_many_connections"
    ADDRESS = "too_many_connections_of_address"
    MALFORMED = "malformed_http"
    STOPPING = "gateway_stopping"


class Phase(Enum):
    """State of a connection, by what its client is to do next."""

    NEW = "no byte has come"
    WAITING = "it may send a further request"
    HEAD = "it sends URL and headers"
    BODY = "it sends a body"
    WHOLE = "its request is whole, and is answered"
    ENDING = "it is sent what is left, and the connection ends"


@dataclass(slots=True)
class Progress:
    """Progress of a client with the request that it sends; times are those of a steady clock.

    Attributes:
        phase: State of the connection.
        since_s: Start of that state.
        url_bytes: Bytes of the URL.
        headers: Number of headers, trailers included.
        header_bytes: Their bytes.
        body_bytes: Bytes of the body.
        framing_bytes: Bytes since the last one of a body: a head that is not complete, trailers, or padding.
    """

    phase: Phase = Phase.NEW
    since_s: float = 0.0
    url_bytes: int = 0
    headers: int = 0
    header_bytes: int = 0
    body_bytes: int = 0
    framing_bytes: int = 0

    def enter(self, phase: Phase, now_s: float) -> None:
        """Change the state."""
        self.phase, self.since_s = phase, now_s

    def begin(self, now_s: float) -> None:
        """Begin a request, unless its first bytes have begun it."""
        if self.phase is not Phase.HEAD:
            self.enter(Phase.HEAD, now_s)
        self.url_bytes = self.headers = self.header_bytes = self.body_bytes = self.framing_bytes = 0

    def add_header(self, name: bytes, value: bytes) -> None:
        """Note a header."""
        self.headers += 1
        self.header_bytes += len(name) + len(value) + _HEADER_FRAMING_BYTES

    def excess(self, limits: ConnectionLimits) -> Breach | None:
        """Return the limit of sizes or counts that the request has passed."""
        if self.url_bytes > limits.url_bytes_max:
            return Breach.URL
        most = limits.url_bytes_max + limits.header_bytes_max
        if (
            self.headers > limits.headers_max
            or self.header_bytes > limits.header_bytes_max
            or self.framing_bytes > most
        ):
            return Breach.HEADERS
        return None

    def late(self, limits: ConnectionLimits, now_s: float) -> bool:
        """Return whether the state has lasted for too long."""
        return now_s - self.since_s > self._time_s(limits)

    def _time_s(self, limits: ConnectionLimits) -> float:
        match self.phase:
            case Phase.NEW | Phase.HEAD:
                return limits.headers_timeout_s
            case Phase.WAITING:
                return limits.idle_timeout_s
            case Phase.BODY:
                return limits.body_timeout_s + self.body_bytes / limits.body_bytes_per_s_min
            case Phase.WHOLE:
                return float("inf")
            case Phase.ENDING:
                return NOTICE_S


def client_of(shared: tuple[str, ...]) -> Callable[[str], str | None]:
    """Return the function that maps an address to what counts as one client; None for a shared one."""
    networks = tuple(ip_network(each, strict=False) for each in shared)

    @lru_cache(ADDRESSES_KEPT)
    def client(address: str) -> str | None:
        try:
            found = ip_address(address.partition("%")[0])
        except ValueError:
            return None
        if found.version == 6 and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        if any(found in network for network in networks if network.version == found.version):
            return None
        if found.version == 4:
            return str(found)
        return str(ip_network(f"{found}/{IPV6_CLIENT_BITS}", strict=False))

    return client
