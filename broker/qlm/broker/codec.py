"""Message bodies: requests as JSON, and dead letters as one line of JSON before the original bytes."""

from dataclasses import dataclass
from typing import Any, Final

import orjson

from qlm.domain.errors import UndecodableDataError
from qlm.domain.formats.plain import request_from_plain, request_to_plain
from qlm.domain.ids import QueueName, RequestId
from qlm.domain.request import Request
from qlm.domain.shown import shown

DEAD_LETTER_VERSION: Final = 1
"""Version of the dead-letter header; a reader rejects any other."""

SHOWN_MAX: Final = 80
"""Characters shown of a message that cannot be decoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """Message that cannot be decoded.

    Attributes:
        reason: One sentence.
        queue: Queue that it came from.
        at_ns: Time of its move to the dead letters, nanoseconds since the epoch.
        body: Original message, readable or not.
    """

    reason: str
    queue: QueueName
    at_ns: int
    body: bytes


class RequestBody(bytes):
    """Message body of a request, with the request itself for a reader that gets this very object.

    Elsewhere (in a file, in another process) only the bytes arrive.

    Attributes:
        request: What the bytes encode.
    """

    request: Request

    @classmethod
    def of(cls, request: Request) -> "RequestBody":
        """Encode a request."""
        body = cls(encode_request(request))
        body.request = request
        return body


def encode_request(request: Request) -> bytes:
    """Encode a request as a message body."""
    return orjson.dumps(request_to_plain(request))


def decode_request(body: bytes) -> Request:
    """Decode a message body.

    Raises:
        UndecodableDataError: The body is not a request of this schema version.
    """
    if isinstance(body, RequestBody):
        return body.request
    return request_from_plain(_object(body))


def encode_dead_letter(letter: DeadLetter) -> bytes:
    """Encode a dead letter: a JSON object, a line feed, and the original body byte by byte."""
    header = {
        "version": DEAD_LETTER_VERSION,
        "reason": letter.reason,
        "queue": letter.queue,
        "at_ns": letter.at_ns,
    }
    return orjson.dumps(header) + b"\n" + letter.body


def decode_dead_letter(body: bytes) -> DeadLetter:
    """Decode a dead letter.

    Raises:
        UndecodableDataError: The body is not a dead letter of this version.
    """
    line, _, original = body.partition(b"\n")
    match _object(line):
        case {"version": 1, "reason": str(reason), "queue": str(queue), "at_ns": int(at_ns)}:
            return DeadLetter(reason=reason, queue=QueueName(queue), at_ns=at_ns, body=original)
        case header:
            raise UndecodableDataError(
                f"dead letter has header {shown(header, SHOWN_MAX)}; expected version {DEAD_LETTER_VERSION}"
            )


def letter_request_id(body: bytes) -> RequestId | None:
    """Return the id of the request whose message a dead letter holds; None if it holds no such message.

    Neither header nor message need be of this version: a request's id has the same place in all of them.
    """
    _, _, original = body.partition(b"\n")
    try:
        id = _object(original).get("id")
    except UndecodableDataError:
        return None
    return RequestId(id) if isinstance(id, str) else None


def _object(body: bytes) -> dict[str, Any]:
    try:
        plain = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise UndecodableDataError(f"message {shown(body, SHOWN_MAX)} is not JSON: {error}") from error
    if not isinstance(plain, dict):
        raise UndecodableDataError(f"message is {shown(plain, SHOWN_MAX)}; expected a JSON object")
    return plain
