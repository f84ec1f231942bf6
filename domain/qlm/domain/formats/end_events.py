"""Stored form of an event of the outbox: JSON."""

from typing import Final

import orjson

from qlm.domain.errors import UndecodableDataError
from qlm.domain.ports.outbox import EndEvent

_WHAT: Final = "a stored event of the outbox"


def encode_end_event(event: EndEvent) -> bytes:
    """Return the stored form."""
    return orjson.dumps({name: getattr(event, name) for name in EndEvent.__slots__})


def decode_end_event(data: bytes) -> EndEvent:
    """Read what `encode_end_event` wrote; fields of later versions are left out.

    Raises:
        UndecodableDataError: A field is missing or of the wrong type.
    """
    try:
        plain = orjson.loads(data)
        return EndEvent(
            subject=str(plain["subject"]),
            ended_as=str(plain["ended_as"]),
            tenant=str(plain["tenant"]),
            at_ns=int(plain["at_ns"]),
            attempts=int(plain["attempts"]),
            failures=int(plain.get("failures", 0)),
            done=tuple(map(str, plain["done"])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UndecodableDataError(f"{_WHAT} cannot be read: {error!r:.200}") from error
