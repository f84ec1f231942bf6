"""One attempt to tell an endpoint of an event."""

from enum import Enum
from typing import Final, NamedTuple

import aiohttp

from qlm.domain.ports.clock import Clock
from qlm.domain.ports.outbox import EndEvent
from qlm.domain.shown import shown
from qlm.gateway.outbound.addresses import AddressRefusedError, guarded_socket
from qlm.gateway.outbound.resolver import ThreadsResolver
from qlm.gateway.render.breaker import Breaker
from qlm.gateway.webhooks.endpoints import Endpoint, Webhooks
from qlm.gateway.webhooks.events import event_body, event_id
from qlm.gateway.webhooks.signature import signed_headers

FAILURES_MAX: Final = 5
PAUSE_NS: Final = 10_000_000_000
"""Failures in a row after which an endpoint is spared, and the pause: others need the connections."""

SHARES: Final = 4
"""Parts of the attempts that may be under way: of several endpoints, none gets more than one of them."""

NAME_THREADS: Final = 2
"""Look-ups of one endpoint's name at a time."""

_GONE: Final = 410


class Result(Enum):
    """What became of an attempt."""

    DELIVERED = "delivered"
    FAILED = "failed"
    """Another attempt may help."""
    SPARED = "spared"
    """None was made: it failed several times just now, or enough are under way."""
    GONE = "gone"
    """The endpoint asks for no further attempt (410)."""


class Attempt(NamedTuple):
    """What became of an attempt, why it failed, and until when its endpoint is spared at least.

    The time is in nanoseconds since the epoch; 0 for an endpoint that is only busy.
    """

    result: Result
    why: str = ""
    spared_until_ns: int = 0


class Sender:
    """Sends events; create it inside the event loop that will use it.

    It follows no redirect, knows no proxy, and reads nothing of an answer but its status.
    """

    def __init__(self, webhooks: Webhooks, clock: Clock) -> None:
        """Connect with the first attempt."""
        self._clock = clock
        self._breakers = {each.name: Breaker(clock, FAILURES_MAX, PAUSE_NS) for each in webhooks.endpoints}
        part = webhooks.limits.concurrent_max // min(SHARES, max(1, len(webhooks.endpoints)))
        self._free = {each.name: max(1, part) for each in webhooks.endpoints}
        self._resolver = ThreadsResolver(NAME_THREADS, of_each_name=True)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,  # the events under way are bounded
                force_close=True,
                use_dns_cache=False,
                resolver=self._resolver,
                socket_factory=guarded_socket(webhooks.networks, "webhooks.allowed_networks"),
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"content-type": "application/json", "user-agent": "QLM"},
            timeout=aiohttp.ClientTimeout(total=webhooks.limits.timeout_s),
            trust_env=False,
        )

    async def send(self, endpoint: Endpoint, event: EndEvent) -> Attempt:
        """Make one attempt, unless the endpoint is spared."""
        breaker = self._breakers[endpoint.name]
        if breaker.is_open:
            return Attempt(Result.SPARED, spared_until_ns=breaker.open_until_ns)
        if not self._free[endpoint.name]:
            return Attempt(Result.SPARED)
        self._free[endpoint.name] -= 1
        try:
            return await self._attempt(endpoint, event, breaker)
        finally:
            self._free[endpoint.name] += 1

    async def _attempt(self, endpoint: Endpoint, event: EndEvent, breaker: Breaker) -> Attempt:
        body = event_body(event)
        at_s = self._clock.now_ns() // 10**9
        headers = signed_headers(event_id(event), at_s, body, endpoint.secrets)
        try:
            async with self._session.post(
                endpoint.url, data=body, headers=headers, allow_redirects=False
            ) as answer:
                status = answer.status
        except Exception as error:  # of any kind: other endpoints are to get the event all the same
            breaker.failed()
            return Attempt(Result.FAILED, _shown(error))
        if 200 <= status < 300:
            breaker.answered()
            return Attempt(Result.DELIVERED)
        breaker.failed()
        return Attempt(Result.GONE if status == _GONE else Result.FAILED, f"it answered {status}")

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()
        await self._resolver.close()


def _shown(error: Exception) -> str:
    """Return why an attempt failed, without the URL: that may have secrets."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, AddressRefusedError):
        return str(cause)
    detail = error.message if isinstance(error, aiohttp.ClientResponseError) else ""
    return type(cause).__name__ + (f": {shown(detail)}" if detail else "")
