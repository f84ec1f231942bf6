"""Requests whose clients ran into their timeouts, for all workers: a retry comes to any of them."""

from qlm.domain.ids import RequestId
from qlm.gateway.core.sdk_retries import SdkCall, SdkRetries

PlainCall = tuple[str, str, int, int]
"""Fields of an `SdkCall`."""


def plain_call(call: SdkCall) -> PlainCall:
    """Return what crosses a link of a call."""
    return call.tenant, call.digest, call.retry, call.gives_up_ns


class SharedRetries:
    """Those of all workers, in their owner; each operation is a call of a worker, of plain values."""

    def __init__(self) -> None:
        self._known = SdkRetries()

    async def left(self, call: PlainCall, id: RequestId, now_ns: int, grace_ns: int) -> None:
        """Note that the client of a request gave up, and may take it up for a time."""
        self._known.left(SdkCall(*call), id, now_ns, grace_ns)

    async def take(self, call: PlainCall, now_ns: int) -> RequestId | None:
        """Return the request that a retry continues; None if there is none."""
        return self._known.take(SdkCall(*call), now_ns)
