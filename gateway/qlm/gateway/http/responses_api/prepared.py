"""A response that is admitted, with what its later calls need."""

from dataclasses import replace
from typing import Any

from qlm.gateway.api.responses_api.state import ResponseState, read_state, with_state
from qlm.gateway.sessions.idempotency import KEY_HEADER, key_reused
from qlm.gateway.sessions.intake import Prepared


def identity_of(plain: dict[str, Any]) -> dict[str, Any]:
    """Return what retries of a response must have in common, without the conversation that it continues.

    Args:
        plain: Its body as received.
    """
    return {"response": plain}


def prepared_with(prepared: Prepared, state: ResponseState, *, notify: bool = False) -> Prepared:
    """Return a request with the state of its response; one that an earlier attempt queued has its own.

    Args:
        prepared: The request.
        state: The state of its response.
        notify: Webhooks report its end.

    Raises:
        ApiError: The earlier attempt was of another API, or the state is too large.
    """
    if prepared.request is None:
        if read_state(prepared.metadata) is None:
            raise key_reused(f"the {KEY_HEADER}")
        return prepared
    metadata = with_state(prepared.metadata, state)
    if notify:
        metadata = replace(metadata, extensions=replace(metadata.extensions, notify=True))
    queued = replace(prepared.request, extensions=metadata.extensions)
    return replace(prepared, metadata=metadata, request=queued)
