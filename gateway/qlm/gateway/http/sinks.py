"""Sinks of HTTP answers: server-sent events, and whole answers."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from qlm.gateway.api.errors import ApiError, from_outcome
from qlm.gateway.api.event_shape import EventShape
from qlm.gateway.core.logprobs.answer import AnswerLogprobs
from qlm.gateway.core.session_events import SendEvent, SendFinal

Write = Callable[[bytes], bool]


class EventSource(Protocol):
    """Source of the bytes of a stream, for its response."""

    @property
    def interrupted(self) -> ApiError | None:
        """Error of a gateway that stops, for a stream that has not begun.

        The server cuts off one that has begun: a client would take a proper end for the end of the answer.
        """
        ...

    @property
    def given_up(self) -> bool:
        """True if the stream has ended with an error before its request did."""
        ...

    write: Write | None
    """Writes bytes at once, or returns False; None to take all of them."""

    @property
    def ended(self) -> bool:
        """True if nothing comes after the bytes taken so far."""
        ...

    async def take(self) -> bytes:
        """Wait for bytes and return them; empty at the end of the stream."""
        ...

    def close(self) -> None:
        """End the stream after the buffered bytes."""
        ...


class Buffered:
    """Part of a buffer of a stream: what ends it, and what wakes its response.

    Attributes:
        interrupted: As of `EventSource`.
        given_up: As of `EventSource`.
        write: As of `EventSource`.
    """

    def __init__(self) -> None:
        self.interrupted: ApiError | None = None
        self.given_up = False
        self.write: Write | None = None
        self._ready = asyncio.Event()
        self._closed = False

    @property
    def ended(self) -> bool:
        """As of `EventSource`."""
        return self._closed

    def interrupt(self, error: ApiError) -> None:
        """Keep the error for a response that has not begun."""
        self.interrupted = error

    def close(self) -> None:
        """End the stream after the buffered bytes."""
        self._closed = True
        self._ready.set()


class StreamSink(Buffered):
    """Writes the bytes of a stream at once if it can, else buffers them until the response takes them.

    The buffer of a client that reads slowly is bounded by the length of its answer.
    """

    def __init__(
        self, shape: EventShape, shown: int, logprobs: AnswerLogprobs | None = None, echo: str = ""
    ) -> None:
        """Begin a stream to a client that already has `shown` output tokens.

        Args:
            shape: The form of its events.
            shown: Output tokens that the client has.
            logprobs: Log probabilities of the answer, to which all its tokens come; None for none.
            echo: Text before the answer.
        """
        super().__init__()
        self._shape = shape
        self._shown = shown
        self._logprobs = logprobs
        self._echo = "" if shown else echo
        self._plain = logprobs is None and not self._echo
        self._begun = shown > 0
        self._chunks: list[bytes] = []
        self._waiting = False

    @property
    def ended(self) -> bool:
        """As of `EventSource`."""
        return self._closed and not self._chunks

    def event(self, event: SendEvent) -> None:
        """Add an event with new text."""
        if self._plain:
            frame = self._framed(self._shape.text(event.offset, event.text))
        else:
            text, logprobs = self._echoed(event.text), self._scored(event)
            frame = self._framed(self._shape.text(event.offset, text, logprobs))
        if not frame:
            return  # nor may an empty chunk be written: it ends the answer
        # What the response has taken before may not be written yet, unless it waits for more.
        at_once = self.write if self._waiting and not self._chunks else None
        if at_once is None or not at_once(frame):
            self._put(frame)

    def keep_alive(self) -> None:
        """Add a comment."""
        if comment := self._shape.keep_alive():
            self._chunks.append(comment)
            self._ready.set()

    def final(self, final: SendFinal) -> None:
        """Add the last events."""
        if final.outcome.ok:
            if self._echo:
                final = replace(final, text=self._echoed(final.text))
            self._put(self._framed(self._shape.ending(final, self._scored(final))))
        else:
            error = from_outcome(final.outcome, final.detail)
            # The client comes back with this position: not with an earlier one, if the log has less by now.
            offset = max(final.offset, self._shown)
            self._chunks.append(self._shape.error(offset, error, final.attainment))
        self.close()

    async def take(self) -> bytes:
        """Wait for bytes and return them; empty at the end of the stream."""
        while not self._chunks:
            if self._closed:
                return b""
            self._ready.clear()
            self._waiting = True
            await self._ready.wait()
            self._waiting = False
        chunks = b"".join(self._chunks)
        self._chunks.clear()
        return chunks

    def _framed(self, frame: bytes) -> bytes:
        """Return a frame, after that of the role if it is the first."""
        if self._begun:
            return frame
        self._begun = True
        return self._shape.role() + frame

    def _echoed(self, text: str) -> str:
        """Return text with the repeated prompt before the first."""
        echo, self._echo = self._echo, ""
        return echo + text

    def _scored(self, new: SendEvent | SendFinal) -> Mapping[str, object] | None:
        if self._logprobs is None or not new.token_ids:
            return None
        skip = max(0, self._shown - self._logprobs.taken)
        return self._logprobs.take(new.token_ids, new.logprobs, prompt=new.prompt_logprobs, skip=skip)

    def _put(self, frame: bytes) -> None:
        if frame:
            self._chunks.append(frame)
            self._ready.set()


class WholeSource(Protocol):
    """Source of a whole answer, for its response."""

    async def wait(self) -> SendFinal | ApiError | None:
        """Wait for the answer, or the error to answer with; None if the client disconnected before."""
        ...

    def close(self) -> None:
        """Stop the response: the client has disconnected."""
        ...


class WholeSink:
    """Hands the end of an answer to the response that waits for it."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._end: asyncio.Future[SendFinal | ApiError | None] = loop.create_future()

    def event(self, event: SendEvent) -> None:
        """Ignore it: the final event has all text."""

    def keep_alive(self) -> None:
        """Ignore it: nothing can be sent before the answer."""

    def final(self, final: SendFinal) -> None:
        """Hand over the answer."""
        self._set(final)

    def interrupt(self, error: ApiError) -> None:
        """Hand over the error to answer with."""
        self._set(error)

    def close(self) -> None:
        """Stop the response: the client has disconnected."""
        self._set(None)

    async def wait(self) -> SendFinal | ApiError | None:
        """Wait for the answer, or the error to answer with; None if the client disconnected before."""
        return await self._end

    def _set(self, end: SendFinal | ApiError | None) -> None:
        if not self._end.done():
            self._end.set_result(end)
