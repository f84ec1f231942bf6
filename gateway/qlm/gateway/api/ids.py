"""Ids of requests as clients and operators have them: QLM's own, or that of the answer object."""

from typing import Final

from qlm.domain.ids import RequestId

CHAT_PREFIX: Final = "chatcmpl-"
TEXT_PREFIX: Final = "cmpl-"
RESPONSE_PREFIX: Final = "resp_"


def request_id(text: str) -> RequestId:
    """Return the id of a request, given that or the id of its answer object."""
    for prefix in (CHAT_PREFIX, TEXT_PREFIX, RESPONSE_PREFIX):
        if text.startswith(prefix):
            return RequestId(text.removeprefix(prefix))
    return RequestId(text)
