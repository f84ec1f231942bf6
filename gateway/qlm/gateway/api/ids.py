"""Ids of requests as clients and operators have them: QLM's own, or that of the answer object."""

from typing import Final

from qlm.domain.ids import RequestId

CHAT_PREFIX: Final = "chatcmpl-"
TEXT_PREFIX: Final = "cmpl-"
RESPONSE_PREFIX: Final = "resp_"
MESSAGE_PREFIX: Final = "msg_"


def request_id(text: str) -> RequestId:
    """Return the id of a request, given that or the id of its answer object."""
    for prefix in (CHAT_PREFIX, TEXT_PREFIX, RESPONSE_PREFIX, MESSAGE_PREFIX):
        if text.startswith(prefix):
            return RequestId(text.removeprefix(prefix))
    return RequestId(text)


def member_id(id: RequestId, choice: int) -> RequestId:
    """Return the id of the request of one answer, given the first one's; no other request has such an id."""
    return RequestId(f"{id}.{choice}") if choice else id


def first_id(id: RequestId) -> RequestId:
    """Return the id of the first request of a family, given one of it or of a request without."""
    return RequestId(id.partition(".")[0])
