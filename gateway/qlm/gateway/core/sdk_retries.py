"""Retries of SDKs without an Idempotency-Key: each takes up the request whose answer it gave up on.

An SDK closes the connection of a plain call when its read timeout is over, and calls again. Its headers tell
the number of the try and the timeout, which separate a call that ran into its timeout from one that its
application stopped. Source: openai 2 and 3 and anthropic 2 for Python (`x-stainless-read-timeout`), openai 6
for Node.js (`x-stainless-timeout`).
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from qlm.domain.ids import RequestId

COUNT_HEADER: Final = "x-stainless-retry-count"
TIMEOUT_HEADERS: Final = ("x-stainless-read-timeout", "x-stainless-timeout")

_DIGITS_MAX: Final = 4
_WEEK_S: Final = 604_800.0

EARLY_S: Final = 0.5
"""The timeout of a client may be over that much earlier than it seems here."""


@dataclass(frozen=True, slots=True)
class SdkCall:
    """One call of an SDK.

    Attributes:
        tenant: Its tenant.
        digest: Digest of its body.
        retry: Number of tries before it.
        gives_up_ns: Time from which its client may have run into its timeout.
    """

    tenant: str
    digest: str
    retry: int
    gives_up_ns: int


def sdk_call(
    headers: Mapping[str, str], tenant: str, digest: Callable[[], str], arrival_ns: int
) -> SdkCall | None:
    """Return a call with what its headers say of its client; None if that is no SDK, or has no timeout."""
    count = headers.get(COUNT_HEADER, "")
    try:
        timeout_s = float(next(headers[name] for name in TIMEOUT_HEADERS if name in headers))
    except (StopIteration, ValueError):
        return None
    if not (count.isascii() and count.isdigit() and len(count) <= _DIGITS_MAX and 0 < timeout_s <= _WEEK_S):
        return None
    gives_up_ns = arrival_ns + round((timeout_s - EARLY_S) * 1e9)
    return SdkCall(tenant, digest(), int(count), gives_up_ns)


class SdkRetries:
    """Requests whose clients ran into their timeouts, until they are taken up or forgotten."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, str], dict[RequestId, int]] = {}
        self._ends: deque[tuple[int, tuple[str, str], RequestId]] = deque()

    def left(self, call: SdkCall, id: RequestId, now_ns: int, grace_ns: int) -> None:
        """Note that the client of a request gave up, and may take it up for a time."""
        self._forget(now_ns)
        key = call.tenant, call.digest
        end_ns = now_ns + grace_ns
        self._ids.setdefault(key, {})[id] = end_ns
        self._ends.append((end_ns, key, id))

    def take(self, call: SdkCall, now_ns: int) -> RequestId | None:
        """Return the request that a retry continues, the one given up first; None if there is none."""
        self._forget(now_ns)
        key = call.tenant, call.digest
        if not call.retry or not (ids := self._ids.get(key)):
            return None
        id = next(iter(ids))
        self._remove(key, id)
        return id

    def _forget(self, now_ns: int) -> None:
        while self._ends and self._ends[0][0] <= now_ns:
            end_ns, key, id = self._ends.popleft()
            # Taken up and given up again, it has a later end.
            if self._ids.get(key, {}).get(id) == end_ns:
                self._remove(key, id)

    def _remove(self, key: tuple[str, str], id: RequestId) -> None:
        ids = self._ids.get(key, {})
        ids.pop(id, None)
        if not ids:
            self._ids.pop(key, None)


class Retries(Protocol):
    """Requests whose clients gave up; see `SdkRetries`. They may be those of several processes."""

    def left(self, call: SdkCall, id: RequestId, now_ns: int, grace_ns: int) -> None:
        """Note that the client of a request gave up, and may take it up for a time."""
        ...

    async def take(self, call: SdkCall, now_ns: int) -> RequestId | None:
        """Return the request that a retry continues; None if there is none.

        Raises:
            StoreUnavailableError: The process that keeps them has ended.
        """
        ...


class OwnRetries:
    """Those of this process."""

    def __init__(self) -> None:
        self._known = SdkRetries()

    def left(self, call: SdkCall, id: RequestId, now_ns: int, grace_ns: int) -> None:
        """See `Retries`."""
        self._known.left(call, id, now_ns, grace_ns)

    async def take(self, call: SdkCall, now_ns: int) -> RequestId | None:
        """See `Retries`."""
        return self._known.take(call, now_ns)
