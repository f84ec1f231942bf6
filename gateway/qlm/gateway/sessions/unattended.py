"""Stop strings of requests whose client does not wait.

Engines do not know stop strings: a gateway has to match them while the answer is generated. The gateway that
accepted such a request does so until it stops; then the one at which its client looks at it goes on.
"""

import contextlib

from qlm.domain.request import RequestRecord
from qlm.gateway.api.errors import ApiError
from qlm.gateway.core.session import Mode
from qlm.gateway.sessions.hub import Hub
from qlm.gateway.sessions.sink import NoSink


def match_stops(hub: Hub, record: RequestRecord) -> None:
    """Match the stop strings of an unfinished request that no client waits for, unless this gateway does.

    A gateway that is stopping, or does not serve the model, leaves them to others.
    """
    metadata = record.metadata
    if record.settled or not (metadata.detached and metadata.answer.stop):
        return
    if hub.metadata_of(metadata.id) is not None:
        return
    with contextlib.suppress(ApiError):
        # Another gateway may still match them, which then counts the end.
        hub.attach(hub.subscribe(metadata, NoSink(), Mode.BACKGROUND, grace_s=0, counts_in_metrics=False))
