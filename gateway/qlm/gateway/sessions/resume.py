"""Resuming a stream, at any gateway.

A client resumes with the number of output tokens that it has been shown: over HTTP as `Last-Event-ID` of
GET /v1/requests/{id}/events, over gRPC as `offset` of Resume. `core.session` replays the output log from its
start, skips the text of these tokens, and sends the rest; it ends with `output_lost` if the log is shorter or
differs. While no client is connected, the session waits for its grace period and then cancels the request.
"""

from qlm.domain.request import RequestMetadata
from qlm.gateway.core.session import Mode
from qlm.gateway.sessions.hub import Hub
from qlm.gateway.sessions.sink import Sink
from qlm.gateway.sessions.subscription import Subscription


def resume(
    hub: Hub, metadata: RequestMetadata, sink: Sink, shown: int, grace_s: float, *, replays: bool = False
) -> Subscription:
    """Subscribe a client to the rest of a stream.

    Args:
        hub: The subscriptions of this gateway.
        metadata: The request.
        sink: Destination of the stream.
        shown: Output tokens that the client has been shown before.
        grace_s: Time for which the client may be disconnected.
        replays: The sink gets these tokens again.

    Raises:
        ApiError: The model is not served here, or this gateway is stopping.
    """
    subscription = hub.subscribe(
        metadata,
        sink,
        Mode.STREAM,
        grace_s=grace_s,
        counts_in_metrics=False,
        shown=shown,
        replays=replays,
    )
    hub.attach(subscription)
    return subscription
