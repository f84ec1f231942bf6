"""The sink of a gRPC stream."""

import asyncio
from collections.abc import Mapping

from qlm.domain.request import RequestMetadata
from qlm.gateway.api.errors import ApiError, from_outcome
from qlm.gateway.api.lateness import lateness_headers
from qlm.gateway.core.session_events import SendEvent, SendFinal
from qlm.gateway.rpc import messages
from qlm.gateway.rpc.v1 import qlm_pb2 as pb


class RpcSink:
    """Buffers the messages of one stream until its writer takes them.

    For a client that reads slowly, new text is joined into one delta, so the buffer is bounded by the answer.

    Attributes:
        error: The error with which the stream ends, if any.
        trailers: Trailing metadata of the stream.
    """

    def __init__(self, metadata: RequestMetadata) -> None:
        """Begin the stream of a request's answer."""
        self.error: ApiError | None = None
        self.trailers: Mapping[str, str] = {}
        self._metadata = metadata
        self._ready = asyncio.Event()
        self._offset: int | None = None
        self._texts: list[str] = []
        self._ids: list[int] = []
        self._last: pb.GenerateResponse | None = None
        self._closed = False

    def event(self, event: SendEvent) -> None:
        """Add new text."""
        self._add(event)

    def keep_alive(self) -> None:
        """Send nothing: HTTP/2 has pings."""

    def final(self, final: SendFinal) -> None:
        """Add the last text and the end."""
        if final.text or final.token_ids:
            self._add(final)
        self._last = messages.ended(self._metadata, final)
        self.trailers = lateness_headers(final.attainment)
        if not final.outcome.ok:
            self.error = from_outcome(final.outcome, final.detail)
        self._close()

    def interrupt(self, error: ApiError) -> None:
        """End the stream before the end of its answer."""
        if not self._closed:
            self.error = error
            self._close()

    async def take(self) -> pb.GenerateResponse | None:
        """Wait for the next message and return it; None at the end."""
        while self._offset is None and not self._closed:
            self._ready.clear()
            await self._ready.wait()
        if self._offset is not None:
            delta = pb.Delta(offset=self._offset, text="".join(self._texts), token_ids=self._ids)
            self._offset, self._texts, self._ids = None, [], []
            return pb.GenerateResponse(delta=delta)
        last, self._last = self._last, None
        return last

    def _add(self, new: SendEvent | SendFinal) -> None:
        self._offset = new.offset
        self._texts.append(new.text)
        self._ids.extend(new.token_ids)
        self._ready.set()

    def _close(self) -> None:
        self._closed = True
        self._ready.set()
