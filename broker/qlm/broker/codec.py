"""Message bodies: requests as JSON, and dead letters as one line of JSON before the original bytes."""

from dataclasses import dataclass
from typing import Any, Final

import orjson

from qlm.domain.errors import StoreCorruptError
from qlm.domain.ids import QueueName
from qlm.domain.plain import request_from_plain, request_to_plain
from qlm.domain.request import Request

DEAD_LETTER_VERSION: Final = 1
"""Version of the dead-letter header written; a reader refuses any other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that nobody can serve.

    Attributes:
        reason: Why, in one sentence.
        queue: Where it was found.
        at_ns: When it was given up, nanoseconds since the epoch.
        body: The message as it was, readable or not.
    """

    reason: str
    queue: QueueName
    at_ns: int
    body: bytes


def encode_request(request: Request) -> bytes:
    """Write a request as a message body."""
    return orjson.dumps(request_to_plain(request))


def decode_request(body: bytes) -> Request:
    """Read a message body.

    Raises:
        StoreCorruptError: It is not a request, or one of another schema version.
    """
    return request_from_plain(_object(body))


def encode_dead_letter(letter: DeadLetter) -> bytes:
    """Write a dead letter: a JSON object, a line feed, and the original body byte by byte."""
    header = {
        "version": DEAD_LETTER_VERSION,
        "reason": letter.reason,
        "queue": letter.queue,
        "at_ns": letter.at_ns,
    }
    return orjson.dumps(header) + b"\n" + letter.body


def decode_dead_letter(body: bytes) -> DeadLetter:
    """Read a dead letter.

    Raises:
        StoreCorruptError: It is not a dead letter, or one of another version.
    """
    line, _, original = body.partition(b"\n")
    match _object(line):
        case {"version": 1, "reason": str(reason), "queue": str(queue), "at_ns": int(at_ns)}:
            return DeadLetter(reason=reason, queue=QueueName(queue), at_ns=at_ns, body=original)
        case header:
            raise StoreCorruptError(
                f"dead letter has header {_shown(header)}; expected version {DEAD_LETTER_VERSION}"
            )


def _object(body: bytes) -> dict[str, Any]:
    try:
        plain = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise StoreCorruptError(f"message {_shown(body)} is not JSON: {error}") from error
    if not isinstance(plain, dict):
        raise StoreCorruptError(f"message is {_shown(plain)}; expected a JSON object")
    return plain


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
