"""A client at a request, whichever door it came through: begin, come back, leave."""

import contextlib
from collections.abc import Iterator

from qlm.domain.errors import QlmError
from qlm.domain.request import RequestRecord
from qlm.gateway.accept import Prepared, open_seat, publish
from qlm.gateway.errors import ApiError, from_qlm
from qlm.gateway.gateway import Gateway
from qlm.gateway.hub import Seat
from qlm.gateway.schema import Body
from qlm.gateway.session import Mode
from qlm.gateway.session_events import ClientGone
from qlm.gateway.sinks import Sink
from qlm.gateway.tracing import Attempt


@contextlib.contextmanager
def refusable(gateway: Gateway, attempt: Attempt) -> Iterator[None]:
    """Count a request that is refused for now, and trace one that is refused at all."""
    try:
        yield
    except (ApiError, QlmError) as error:
        told = from_qlm(error) if isinstance(error, QlmError) else error
        if told.status in (429, 503):
            gateway.metrics.refused(told.status, told.code or "")
        gateway.spans.refused(attempt, told, gateway.clock.now_ns())
        raise


async def begin(gateway: Gateway, body: Body, prepared: Prepared, sink: Sink, mode: Mode) -> Seat:
    """Open a session on a request: queue it if it is new, attach to it if a retry found it.

    Raises:
        ApiError: It could not be queued; nothing was accepted.
    """
    fresh = prepared.request is not None
    grace_s = _grace_s(gateway, body, prepared)
    seat = open_seat(gateway, prepared.card, sink, mode, grace_s=grace_s, counted=fresh)
    if prepared.request is None:
        gateway.hub.look_up(seat)
    else:
        kind = "stream" if mode is Mode.STREAM else "whole"
        await publish(gateway, prepared.request, prepared.card, seat, kind)
    return seat


def come_back(gateway: Gateway, record: RequestRecord, sink: Sink, shown: int) -> Seat:
    """Open a session for a client that goes on with a stream.

    Args:
        gateway: This gateway.
        record: The request.
        sink: Where its stream goes.
        shown: Output tokens that the client has been shown before.
    """
    grace_s = gateway.limits.resume_grace_stream_s
    seat = open_seat(gateway, record.card, sink, Mode.STREAM, grace_s=grace_s, counted=False, shown=shown)
    gateway.hub.look_up(seat)
    return seat


def leave(gateway: Gateway, seat: Seat) -> None:
    """Note that the client has gone; it may come back for a while."""
    gateway.hub.handle(seat, ClientGone(gateway.clock.now_ns()))


def _grace_s(gateway: Gateway, body: Body, prepared: Prepared) -> float:
    """How long the client may be away. Who sends an Idempotency-Key means to come back."""
    if body.resume_grace_s is not None:
        return body.resume_grace_s
    limits = gateway.limits
    return limits.resume_grace_stream_s if body.stream or prepared.keyed else limits.resume_grace_plain_s
