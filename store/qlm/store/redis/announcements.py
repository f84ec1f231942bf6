"""Decoding of what is published on the channels of Redis, where any client of it may write.

And of the notices that were missed there.
"""

from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import orjson

from qlm.domain.errors import UndecodableDataError
from qlm.domain.formats.extensions import NO_LOG_EXTENSIONS, LogExtensions, extensions_from_plain
from qlm.domain.ids import RequestId
from qlm.domain.lease import Epoch
from qlm.domain.notices import CancelAsked, DrainAsked, InstanceNotice, LeaseHeld, QueueChanged
from qlm.domain.outcome import Outcome
from qlm.domain.output import OutputSlice
from qlm.domain.shown import shown
from qlm.store.redis.errors import readable_ones


@contextmanager
def _readable(text: bytes) -> Iterator[None]:
    """Translate whatever an unreadable message leads to.

    Raises:
        UndecodableDataError: The message cannot be read.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise UndecodableDataError(f"the message {shown(text)} cannot be read: {error!r:.200}") from error


def read_slices(text: bytes) -> list[OutputSlice]:
    """Decode the slices of one message.

    Raises:
        UndecodableDataError: The message cannot be read.
    """
    with _readable(text):
        return [_read_slice(plain) for plain in orjson.loads(text)]


def _read_slice(plain: dict[str, Any]) -> OutputSlice:
    outcome, offset = plain.get("outcome"), plain["offset"]
    if type(offset) is not int or offset < 0:
        raise ValueError(f"offset is {shown(offset)}")
    return OutputSlice(
        id=RequestId(_text(plain["id"])),
        offset=offset,
        token_ids=tuple(array("I", plain["token_ids"])),  # refuses whatever is no token id
        outcome=Outcome(outcome) if outcome else None,
        detail=_text(plain.get("detail", "")),
        extensions=_extensions(plain.get("extensions")),
    )


def _extensions(plain: object) -> LogExtensions:
    return NO_LOG_EXTENSIONS if plain is None else extensions_from_plain(LogExtensions, plain)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{shown(value)} is no text")
    return value


def read_notice(text: bytes) -> tuple[InstanceNotice]:
    """Decode the notice of one message.

    Raises:
        UndecodableDataError: The message cannot be read.
    """
    with _readable(text):
        plain = orjson.loads(text)
        match plain["kind"]:
            case "cancel":
                return (CancelAsked(id=RequestId(_text(plain["id"])), outcome=Outcome(plain["outcome"])),)
            case "drain":
                return (DrainAsked(),)
            case _:
                return (QueueChanged(),)


def read_standing(reply: Sequence[Any]) -> tuple[InstanceNotice, ...]:
    """Decode the notices with which a subscription begins, as the script `standing` returns them."""
    drain, cancels, leases = reply
    cancelled = sorted(zip(cancels[::2], cancels[1::2], strict=True))
    own = sorted(zip(leases[::3], leases[1::3], leases[2::3], strict=True))
    return (
        QueueChanged(),
        *readable_ones(_read_lease, own),
        *(CancelAsked(id=RequestId(id.decode()), outcome=Outcome(o.decode())) for id, o in cancelled),
        *((DrainAsked(),) if drain else ()),
    )


def _read_lease(reply: tuple[bytes, bytes, bytes]) -> LeaseHeld:
    id, incarnation, n = reply
    return LeaseHeld(id=RequestId(id.decode()), epoch=Epoch(int(incarnation), int(n)))


def read_wakeup(text: bytes) -> tuple[str]:
    """Decode the wakeup of one message.

    Raises:
        UndecodableDataError: The message cannot be read.
    """
    with _readable(text):
        return (text.decode(),)
