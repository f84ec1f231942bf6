"""Encoding of the token log: frames of records, each frame with checksums.

A segment begins with `MAGIC`. Each frame is what one loop turn wrote: length and CRC-32 of the records, CRC
of these two numbers (four bytes each), then the records. All numbers are little-endian. A record is a kind
(one byte, one unused), the length of the id (two), an offset and a count (four each), a time (eight,
nanoseconds), the id, then what the count counts: token ids of four bytes, or bytes of JSON.

A process that is killed leaves the beginning of its last frame at most. So a frame that ends beyond the file
is torn, which is normal; a checksum that does not fit is damage.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple
from zlib import crc32

import orjson

from qlm.domain.errors import InvalidValueError
from qlm.domain.formats.extensions import LogExtensions, extensions_from_plain, extensions_to_plain
from qlm.domain.ids import RequestId, TokenIds
from qlm.store.core.effects import Logged
from qlm.store.core.token_codec import TOKEN_BYTES, decode_tokens, encode_tokens

MAGIC: Final = b"QLMTOK1\n"
_NUMBERS: Final = struct.Struct("<II")
_CHECK: Final = struct.Struct("<I")
HEADER_BYTES: Final = _NUMBERS.size + _CHECK.size
_RECORD: Final = struct.Struct("<BxHIIq")


class Kind(IntEnum):
    """Kinds of records."""

    TOKENS = 1
    """Tokens from an offset on; those from offset 0 replace the log."""
    EXTENSIONS = 2
    """The optional fields of the log from now on; of its log probabilities, those since the record before."""
    ENDED = 3
    """The request has ended, and its end is stored elsewhere: its log is void."""


class Record(NamedTuple):
    """One record; which fields count depends on its kind."""

    kind: Kind
    id: RequestId
    offset: int = 0
    at_ns: int = 0
    token_ids: TokenIds = ()
    extensions: LogExtensions | None = None


@dataclass(frozen=True, slots=True)
class SegmentRead:
    """What a segment says.

    Attributes:
        records: Its records up to the first frame that is torn or damaged.
        damaged_at: Where that frame begins if it is damaged.
    """

    records: tuple[Record, ...]
    damaged_at: int | None = None


def tokens_record(logged: Logged) -> bytes:
    """Encode tokens."""
    tokens = logged.token_ids
    return _record(Kind.TOKENS, logged.id, logged.offset, len(tokens), logged.at_ns) + encode_tokens(tokens)


def extensions_record(id: RequestId, extensions: LogExtensions) -> bytes:
    """Encode the optional fields of a log."""
    text = orjson.dumps(extensions_to_plain(extensions))
    return _record(Kind.EXTENSIONS, id, 0, len(text), 0) + text


def ended_record(id: RequestId) -> bytes:
    """Encode the end of a request."""
    return _record(Kind.ENDED, id, 0, 0, 0)


def _record(kind: Kind, id: RequestId, offset: int, count: int, at_ns: int) -> bytes:
    name = id.encode()
    return _RECORD.pack(kind, len(name), offset, count, at_ns) + name


def frame(records: bytes) -> bytes:
    """Return a frame of some records."""
    numbers = _NUMBERS.pack(len(records), crc32(records))
    return numbers + _CHECK.pack(crc32(numbers)) + records


def read_segment(data: bytes) -> SegmentRead:
    """Read a segment up to the first frame that is torn or damaged."""
    if not data.startswith(MAGIC):
        return SegmentRead((), None if MAGIC.startswith(data) else 0)
    records: list[Record] = []
    at = len(MAGIC)
    while len(data) - at >= HEADER_BYTES:
        numbers = data[at : at + _NUMBERS.size]
        length, check = _NUMBERS.unpack(numbers)
        if _CHECK.unpack_from(data, at + _NUMBERS.size) != (crc32(numbers),):
            return SegmentRead(tuple(records), at)
        payload = data[at + HEADER_BYTES : at + HEADER_BYTES + length]
        if len(payload) < length:
            break
        try:
            if crc32(payload) != check:
                raise ValueError("the checksum does not fit")
            records += _records(payload)
        except (ValueError, InvalidValueError, struct.error):
            return SegmentRead(tuple(records), at)
        at += HEADER_BYTES + length
    return SegmentRead(tuple(records))


def _records(payload: bytes) -> Iterator[Record]:
    at = 0
    while at < len(payload):
        kind, name_bytes, offset, count, at_ns = _RECORD.unpack_from(payload, at)
        at += _RECORD.size
        id = RequestId(payload[at : at + name_bytes].decode())
        at += name_bytes
        match Kind(kind):
            case Kind.TOKENS:
                end = at + count * TOKEN_BYTES
                yield Record(Kind.TOKENS, id, offset, at_ns, decode_tokens(payload[at:end]))
            case Kind.EXTENSIONS:
                end = at + count
                plain = orjson.loads(payload[at:end])
                yield Record(Kind.EXTENSIONS, id, extensions=extensions_from_plain(LogExtensions, plain))
            case Kind.ENDED:
                end = at
                yield Record(Kind.ENDED, id)
        at = end
