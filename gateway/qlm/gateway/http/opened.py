"""Streams that say something before their request is answered."""

from qlm.gateway.api.errors import ApiError
from qlm.gateway.core.session_events import SendEvent, SendFinal
from qlm.gateway.http.derendered import DerenderedSink
from qlm.gateway.http.sinks import StreamSink, Write


class OpenedSink:
    """A sink whose first events are there at once."""

    def __init__(self, sink: StreamSink | DerenderedSink, opening: bytes) -> None:
        """Put `opening`, which may be empty, in front of what `sink` collects."""
        self._sink = sink
        self._opening = opening

    @property
    def interrupted(self) -> ApiError | None:
        """As of the sink; a stream that has first events begins with them."""
        return self._sink.interrupted

    @property
    def given_up(self) -> bool:
        """As of the sink."""
        return self._sink.given_up

    @property
    def write(self) -> Write | None:
        """As of the sink."""
        return self._sink.write

    @write.setter
    def write(self, write: Write | None) -> None:
        self._sink.write = write

    @property
    def ended(self) -> bool:
        """As of the sink, once the first events are taken."""
        return not self._opening and self._sink.ended

    def event(self, event: SendEvent) -> None:
        """Add text or tokens."""
        self._sink.event(event)

    def keep_alive(self) -> None:
        """Show the client that the connection is alive."""
        self._sink.keep_alive()

    def final(self, final: SendFinal) -> None:
        """Add the end."""
        self._sink.final(final)

    def interrupt(self, error: ApiError) -> None:
        """Keep the error for a response that has not begun."""
        self._sink.interrupt(error)

    def close(self) -> None:
        """End the stream after the buffered bytes."""
        self._sink.close()

    async def take(self) -> bytes:
        """Wait for bytes and return them; empty at the end of the stream."""
        if opening := self._opening:
            self._opening = b""
            return opening
        return await self._sink.take()
