"""Encoding of the journal's entries as keys and bytes.

`log/<offset>/<id>` holds a part of the log of an unfinished request while no store is open (in versions
without a token log, one append): the time (eight bytes, little-endian nanoseconds), then the packed token
ids. `extensions/<id>` holds the optional fields of that log, and the time of its first token, as JSON:
efb3399 reads no further bytes in the log, and leaves this key alone. `clusters` holds the published token
clusters, `history` what the controller has learned, as it was kept. `ended/<id>` holds an ended request: the
length of a JSON text (four bytes, little-endian), the text, then the packed output. efb3399 refuses a file
with an outcome or a sampling parameter that it does not know, and leaves further fields of the text alone: so
the text has such an outcome in `exact_outcome`, and such parameters in `later_sampling`.
"""

import logging
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from qlm.domain.errors import UndecodableDataError
from qlm.domain.formats.extensions import (
    NO_LOG_EXTENSIONS,
    LogExtensions,
    extensions_from_plain,
    extensions_to_plain,
)
from qlm.domain.formats.plain import (
    joined_metadata,
    metadata_from_plain,
    metadata_to_plain,
    parted_metadata,
)
from qlm.domain.ids import RequestId, TokenIds
from qlm.domain.outcome import Outcome
from qlm.domain.request import Event, RequestRecord, RequestState
from qlm.store.core.effects import Logged
from qlm.store.core.token_codec import decode_tokens, encode_tokens

log = logging.getLogger("qlm.store")

INCARNATION_KEY: Final = "incarnation"
LOG_PREFIX: Final = "log/"
ENDED_PREFIX: Final = "ended/"
EXTENSIONS_PREFIX: Final = "extensions/"
_TIME: Final = struct.Struct("<q")
_LENGTH: Final = struct.Struct("<I")

_NEAREST: Final = {Outcome.REFUSED: Outcome.FAILED}
"""Outcomes that efb3399 does not know, each with the nearest that it does."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Ended request, with its output."""

    record: RequestRecord
    detail: str
    output: TokenIds
    extensions: LogExtensions = NO_LOG_EXTENSIONS


def log_key(logged: Logged) -> str:
    """Return the key of one append."""
    return f"{LOG_PREFIX}{logged.offset}/{logged.id}"


def encode_log(logged: Logged) -> bytes:
    """Encode one append."""
    return _TIME.pack(logged.at_ns) + encode_tokens(logged.token_ids)


def decode_log(key: str, value: bytes) -> Logged:
    """Decode one append.

    Raises:
        UndecodableDataError: The value is not of `encode_log`.
    """
    try:
        offset, id = key.removeprefix(LOG_PREFIX).split("/", 1)
        (at_ns,) = _TIME.unpack_from(value)
        return Logged(RequestId(id), int(offset), decode_tokens(value[_TIME.size :]), at_ns)
    except (ValueError, struct.error) as error:
        raise UndecodableDataError(f"journal entry {key!r} cannot be read: {error}") from error


def extensions_key(id: RequestId) -> str:
    """Return the key of the extensions of a log."""
    return f"{EXTENSIONS_PREFIX}{id}"


def encode_extensions(extensions: LogExtensions, first_token_ns: int) -> bytes:
    """Encode the extensions of a log."""
    return orjson.dumps({"first_token_ns": first_token_ns, "extensions": extensions_to_plain(extensions)})


def decode_extensions(key: str, value: bytes) -> tuple[LogExtensions, int]:
    """Decode the extensions of a log, and the time of its first token.

    Raises:
        UndecodableDataError: The value is not of `encode_extensions`.
    """
    try:
        plain = orjson.loads(value)
        return extensions_from_plain(LogExtensions, plain["extensions"]), int(plain["first_token_ns"])
    except (KeyError, TypeError, ValueError) as error:
        raise UndecodableDataError(f"journal entry {key!r} cannot be read: {error}") from error


def ended_key(id: RequestId) -> str:
    """Return the key of an ended request."""
    return f"{ENDED_PREFIX}{id}"


def encode_ended(ended: Ended) -> bytes:
    """Encode an ended request."""
    record = ended.record
    metadata, later_sampling = parted_metadata(metadata_to_plain(record.metadata))
    plain: dict[str, Any] = {
        "card": metadata,
        "outcome": record.outcome,
        "detail": ended.detail,
        "first_token_ns": record.first_token_ns,
        "ended_ns": record.ended_ns,
        "output_tokens": len(ended.output),
        "events": [(e.at_ns, e.what, e.why, e.instance) for e in record.events],
    }
    if record.outcome in _NEAREST:
        plain |= {"outcome": _NEAREST[record.outcome], "exact_outcome": record.outcome}
    if later_sampling:
        plain["later_sampling"] = later_sampling
    if record.reader_late_s is not None:
        plain["reader_late_s"] = record.reader_late_s
    if extensions := extensions_to_plain(ended.extensions):
        plain["log_extensions"] = extensions
    text = orjson.dumps(plain)
    return _LENGTH.pack(len(text)) + text + encode_tokens(ended.output)


def decode_ended(key: str, value: bytes) -> Ended | None:
    """Decode an ended request; one with a value that this version does not know is None, and logged.

    Raises:
        UndecodableDataError: The value is not of `encode_ended`.
    """
    try:
        (length,) = _LENGTH.unpack_from(value)
        plain = orjson.loads(value[_LENGTH.size : _LENGTH.size + length])
        if not isinstance(plain, dict):
            raise TypeError("no JSON object")
        output = decode_tokens(value[_LENGTH.size + length :])
    except (TypeError, ValueError, struct.error) as error:
        raise UndecodableDataError(f"journal entry {key!r} cannot be read: {error!r}") from error
    try:
        return _ended(plain, output)
    except (KeyError, TypeError, ValueError, UndecodableDataError) as error:
        log.warning("the end of %s is not read: %r", key.removeprefix(ENDED_PREFIX), error)
        return None


def _ended(plain: Mapping[str, Any], output: TokenIds) -> Ended:
    outcome, detail = _outcome(plain), plain["detail"]
    recorded = plain.get("output_tokens", len(output))  # earlier versions wrote none
    if recorded != len(output):
        detail = f"its output log has {len(output)} tokens, {recorded} were recorded"
        output, outcome = (), Outcome.OUTPUT_LOST if outcome.ok else outcome
    record = RequestRecord(
        metadata=metadata_from_plain(joined_metadata(plain["card"], plain.get("later_sampling", {}))),
        state=RequestState.ENDED,
        output_tokens=len(output),
        outcome=outcome,
        first_token_ns=plain["first_token_ns"],
        ended_ns=plain["ended_ns"],
        reader_late_s=plain.get("reader_late_s"),
        events=tuple(Event(at_ns=t, what=w, why=y, instance=i) for t, w, y, i in plain["events"]),
    )
    extensions = extensions_from_plain(LogExtensions, plain.get("log_extensions", {}), "log_extensions")
    return Ended(record, detail, output, extensions)


def _outcome(plain: Mapping[str, Any]) -> Outcome:
    """Return the exact outcome, or the nearest to one of a later version."""
    try:
        return Outcome(plain.get("exact_outcome", plain["outcome"]))
    except ValueError:
        return Outcome(plain["outcome"])
