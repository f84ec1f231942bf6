"""What the embedded store keeps in its journal, as keys and bytes.

`log/<offset>/<id>` holds one append to the log of an unfinished request: the time (eight bytes,
little-endian nanoseconds), then the packed token ids. `ended/<id>` holds an ended request: the length
of a JSON text (four bytes, little-endian), the text, then the packed output.
"""

import struct
from dataclasses import dataclass
from typing import Any, Final

import orjson

from qlm.domain.errors import StoreCorruptError
from qlm.domain.ids import RequestId, TokenIds
from qlm.domain.outcome import Outcome
from qlm.domain.plain import card_from_plain, card_to_plain
from qlm.domain.request import Event, RequestRecord, RequestState
from qlm.store.effects import Logged
from qlm.store.packing import pack, unpack

INCARNATION_KEY: Final = "incarnation"
LOG_PREFIX: Final = "log/"
ENDED_PREFIX: Final = "ended/"
_TIME: Final = struct.Struct("<q")
_LENGTH: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Ended:
    """An ended request, whole."""

    record: RequestRecord
    detail: str
    output: TokenIds


def log_key(logged: Logged) -> str:
    """Key of one append."""
    return f"{LOG_PREFIX}{logged.offset}/{logged.id}"


def encode_log(logged: Logged) -> bytes:
    """Write one append."""
    return _TIME.pack(logged.at_ns) + pack(logged.token_ids)


def decode_log(key: str, value: bytes) -> Logged:
    """Read one append.

    Raises:
        StoreCorruptError: It was not written by `encode_log`.
    """
    try:
        offset, id = key.removeprefix(LOG_PREFIX).split("/", 1)
        (at_ns,) = _TIME.unpack_from(value)
        return Logged(RequestId(id), int(offset), unpack(value[_TIME.size :]), at_ns)
    except (ValueError, struct.error) as error:
        raise StoreCorruptError(f"journal entry {key!r} cannot be read: {error}") from error


def ended_key(id: RequestId) -> str:
    """Key of an ended request."""
    return f"{ENDED_PREFIX}{id}"


def encode_ended(ended: Ended) -> bytes:
    """Write an ended request."""
    record = ended.record
    text = orjson.dumps(
        {
            "card": card_to_plain(record.card),
            "outcome": record.outcome,
            "detail": ended.detail,
            "first_token_ns": record.first_token_ns,
            "ended_ns": record.ended_ns,
            "events": [(e.at_ns, e.what, e.why, e.instance) for e in record.events],
        }
    )
    return _LENGTH.pack(len(text)) + text + pack(ended.output)


def decode_ended(key: str, value: bytes) -> Ended:
    """Read an ended request.

    Raises:
        StoreCorruptError: It was not written by `encode_ended`, or by a newer schema.
    """
    try:
        (length,) = _LENGTH.unpack_from(value)
        plain: dict[str, Any] = orjson.loads(value[_LENGTH.size : _LENGTH.size + length])
        output = unpack(value[_LENGTH.size + length :])
        record = RequestRecord(
            card=card_from_plain(plain["card"]),
            state=RequestState.ENDED,
            output_tokens=len(output),
            outcome=Outcome(plain["outcome"]),
            first_token_ns=plain["first_token_ns"],
            ended_ns=plain["ended_ns"],
            events=tuple(Event(at_ns=t, what=w, why=y, instance=i) for t, w, y, i in plain["events"]),
        )
    except (KeyError, TypeError, ValueError, struct.error) as error:
        raise StoreCorruptError(f"journal entry {key!r} cannot be read: {error!r}") from error
    return Ended(record, plain["detail"], output)
