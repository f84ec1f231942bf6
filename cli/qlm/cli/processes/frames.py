"""Messages between two processes of one `qlm serve`, over a pair of sockets that the owner made.

The pair is inherited, so no other process can connect, and both ends are of one installation. All messages of
a turn of the event loop are one frame: its length (four bytes, little-endian), then a pickle of the list.
"""

import asyncio
import io
import logging
import pickle
import struct
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final, cast

from qlm.broker.codec import RequestBody
from qlm.domain.formats.extensions import (
    NO_CLASS_EXTENSIONS,
    NO_LOG_EXTENSIONS,
    NO_REQUEST_EXTENSIONS,
    ClassExtensions,
    LogExtensions,
    RequestExtensions,
)

log = logging.getLogger("qlm.cli")

FRAME_BYTES_MAX: Final = 1 << 30
"""A longer frame is none: the two processes have lost each other."""

Message = tuple[Any, ...]

_LENGTH: Final = struct.Struct("<I")
_PLAIN: Final = frozenset({("array", "array"), ("array", "_array_reconstructor")})
_SINGLE: Final = {
    LogExtensions: NO_LOG_EXTENSIONS,
    RequestExtensions: NO_REQUEST_EXTENSIONS,
    ClassExtensions: NO_CLASS_EXTENSIONS,
}


def restored(cls: type[Any], fields: Sequence[Any]) -> Any:
    """Return the extensions with these fields; those without any are one object, and are compared so."""
    made = cls(**dict(zip(cls.__slots__, fields, strict=True)))
    single = _SINGLE[cls]
    return single if made == single else made


def _reduced(value: Any) -> tuple[Any, ...]:
    return restored, (type(value), tuple(getattr(value, name) for name in type(value).__slots__))


def plain(body: bytes) -> bytes:
    """Return what crosses of a message body."""
    return body


def _reduced_body(body: RequestBody) -> tuple[Any, ...]:
    return plain, (bytes(body),)


_REDUCERS: Final = {**dict.fromkeys(_SINGLE, _reduced), RequestBody: _reduced_body}


def _member(cls: Any, name: str) -> Any:
    """Return the member of an enumeration: before Python 3.11.4, pickles name it by `getattr`."""
    if not (isinstance(cls, type) and issubclass(cls, Enum)):
        raise pickle.UnpicklingError(f"a message has an attribute of {cls!r}; expected one of an enumeration")
    return cls[name]


class _Unpickler(pickle.Unpickler):
    """Makes values of the domain and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _member
        if module.startswith("qlm.domain.") or module == __name__ or (module, name) in _PLAIN:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"a message has a {module}.{name}; expected values of the domain")


def encode(messages: Sequence[Message]) -> bytes:
    """Encode messages as one frame."""
    data = io.BytesIO()
    data.write(bytes(_LENGTH.size))
    pickler = pickle.Pickler(data, protocol=5)
    pickler.dispatch_table = _REDUCERS
    pickler.dump(messages)
    whole = data.getbuffer()
    _LENGTH.pack_into(whole, 0, len(whole) - _LENGTH.size)
    return bytes(whole)


def decode(payload: bytes) -> Sequence[Message]:
    """Decode the messages of a frame, without its length."""
    return cast("Sequence[Message]", _Unpickler(io.BytesIO(payload)).load())


class Link(asyncio.Protocol):
    """One end of the pair.

    Args:
        receive: Called with each message.
        lost: Called once when the other process has ended.

    Attributes:
        open: The other process can be reached.
        received: How often something has come from it.
        reading: What comes from it is read.
    """

    def __init__(self, receive: Callable[[Message], None], lost: Callable[[], None]) -> None:
        self.open = False
        self.received = 0
        self.reading = True
        self._receive = receive
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._messages: list[Message] = []
        self._sent_bytes = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has another base
        self.open = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end of the other process, or of this end."""
        if self.open:
            self.open = False
            self._writable.set()
            self._lost()

    def data_received(self, data: bytes) -> None:
        """Hand out the messages of whole frames."""
        self.received += 1
        received = self._received
        received += data
        at = 0
        while len(received) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(received, at)
            if length > FRAME_BYTES_MAX:
                self.close()
                return
            end = at + _LENGTH.size + length
            if len(received) < end:
                break
            messages = decode(bytes(received[at + _LENGTH.size : end]))
            at = end
            for message in messages:
                self._receive(message)
        del received[:at]

    def pause_writing(self) -> None:
        """Let feeds wait: the other process reads too slowly."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let feeds go on."""
        self._writable.set()

    async def writable(self) -> None:
        """Wait until the other process has read most of what was sent."""
        await self._writable.wait()

    @property
    def behind(self) -> bool:
        """True if the other process reads too slowly."""
        return not self._writable.is_set()

    @property
    def signs(self) -> tuple[int, int]:
        """Counts of which one grows while the other process works.

        While it is read, how often something has come from it, else the bytes that it has taken.
        """
        if self.reading or self._transport is None:
            return self.received, 0
        return self.received, self._sent_bytes - self._transport.get_write_buffer_size()

    def pause_reading(self, paused: bool) -> None:
        """Read nothing for a while, or go on."""
        if self._transport is not None and self.open:
            self.reading = not paused
            (self._transport.pause_reading if paused else self._transport.resume_reading)()

    def send(self, *message: Any) -> None:
        """Send a message at the end of this turn of the event loop; without a peer, nothing."""
        if not self.open:
            return
        if not self._messages:
            self._loop.call_soon(self._flush)
        self._messages.append(message)

    def close(self) -> None:
        """Send what is left, and close this end."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _flush(self) -> None:
        messages, self._messages = self._messages, []
        if messages and self.open and self._transport is not None:
            frame = self._frame(messages)
            self._sent_bytes += len(frame)
            self._transport.write(frame)

    def _frame(self, messages: Sequence[Message]) -> bytes:
        """Encode messages; one that cannot be is a defect, which costs the call or feed that it is of."""
        try:
            return encode(messages)
        except Exception:
            return encode([each for message in messages for each in self._encodable(message)])

    def _encodable(self, message: Message) -> Sequence[Message]:
        try:
            encode([message])
        except Exception as error:
            log.exception("a message between the processes of qlm serve cannot be sent")
            return self._failed(message, ("RuntimeError", f"a message cannot be sent: {error!r}", {}))
        return [message]

    def _failed(self, message: Message, why: tuple[str, str, dict[str, Any]]) -> Sequence[Message]:
        """Fail what is asked for here, and return what says so to the other process about its own."""
        match message:
            case ("call", number, *_):
                self._receive(("failed", number, why))
            case ("open", number, *_):
                self._receive(("end", number, why))
            case ("done", number, _):
                return [("failed", number, why)]
            case ("item", number, _):
                return [("end", number, why)]
        return []
