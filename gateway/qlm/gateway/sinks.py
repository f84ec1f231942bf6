"""Where a session's answer goes: to a stream, to a waiting handler, or nowhere."""

import asyncio
from typing import Protocol

from qlm.gateway.errors import ApiError, from_outcome
from qlm.gateway.session_events import SendEvent, SendFinal
from qlm.gateway.shapes import StreamShape


class Sink(Protocol):
    """Takes what a session sends; never blocks."""

    def event(self, event: SendEvent) -> None:
        """Further text."""
        ...

    def keep_alive(self) -> None:
        """Nothing new, still there."""
        ...

    def final(self, final: SendFinal) -> None:
        """The end."""
        ...

    def break_off(self, error: ApiError) -> None:
        """The gateway stops before the end has come; the request goes on."""
        ...


class StreamSink:
    """Collects the bytes of a stream until its writer takes them.

    A client that reads slowly lets bytes gather here; they are bounded by the length of the answer.

    Attributes:
        broken_off: What a client is told whose stream has not begun; one that has is cut off by the server,
            since a proper end would be taken for that of the answer.
    """

    def __init__(self, shape: StreamShape, shown: int) -> None:
        """Begin a stream to a client that has been shown `shown` output tokens before."""
        self.broken_off: ApiError | None = None
        self._shape = shape
        self._begun = shown > 0
        self._ready = asyncio.Event()
        self._chunks: list[bytes] = []
        self._closed = False

    def event(self, event: SendEvent) -> None:
        """Write further text."""
        self._put(self._shape.text(event.offset, event.text))

    def keep_alive(self) -> None:
        """Write a comment."""
        if comment := self._shape.keep_alive():
            self._chunks.append(comment)
            self._ready.set()

    def final(self, final: SendFinal) -> None:
        """Write the last events."""
        if final.outcome.ok:
            self._put(self._shape.ending(final))
        else:
            self._chunks.append(self._shape.error(final.offset, from_outcome(final.outcome, final.detail)))
        self.close()

    def break_off(self, error: ApiError) -> None:
        """Write nothing more."""
        self.broken_off = error

    def close(self) -> None:
        """Nothing more will come."""
        self._closed = True
        self._ready.set()

    async def take(self) -> bytes:
        """Wait for bytes; empty at the end."""
        while not self._chunks:
            if self._closed:
                return b""
            self._ready.clear()
            await self._ready.wait()
        chunks = b"".join(self._chunks)
        self._chunks.clear()
        return chunks

    def _put(self, frame: bytes) -> None:
        if not self._begun:
            self._begun = True
            self._chunks.append(self._shape.role())
        self._chunks.append(frame)
        self._ready.set()


class WholeSink:
    """Keeps the end of an answer for the handler that waits for it."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._end: asyncio.Future[SendFinal | ApiError | None] = loop.create_future()

    def event(self, event: SendEvent) -> None:
        """Not streamed: the final has all text."""

    def keep_alive(self) -> None:
        """Nothing can be sent before the answer."""

    def final(self, final: SendFinal) -> None:
        """Hand the answer over."""
        self._set(final)

    def break_off(self, error: ApiError) -> None:
        """Hand over what is said instead of an answer."""
        self._set(error)

    def close(self) -> None:
        """The client is gone."""
        self._set(None)

    async def wait(self) -> SendFinal | ApiError | None:
        """Wait for the end, or for why it is not waited for any longer; None if the client left before."""
        return await self._end

    def _set(self, end: SendFinal | ApiError | None) -> None:
        if not self._end.done():
            self._end.set_result(end)


class NoSink:
    """For requests nobody waits for."""

    def event(self, event: SendEvent) -> None:
        """Nobody reads it."""

    def keep_alive(self) -> None:
        """Nobody is there."""

    def final(self, final: SendFinal) -> None:
        """The store has it."""

    def break_off(self, error: ApiError) -> None:
        """Nobody is there."""
