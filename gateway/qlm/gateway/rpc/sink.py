"""Collects the messages of one stream until its writer takes them."""

import asyncio

from qlm.domain.request import RequestCard
from qlm.gateway.errors import ApiError, from_outcome
from qlm.gateway.rpc import messages
from qlm.gateway.rpc.v1 import qlm_pb2 as pb
from qlm.gateway.session_events import SendEvent, SendFinal


class RpcSink:
    """The sink of a gRPC stream.

    Of a client that reads slowly, what is new is joined into one delta: nothing gathers but the answer.

    Attributes:
        error: How the stream ends, if badly.
    """

    def __init__(self, card: RequestCard) -> None:
        """Begin a stream of the answer to a request."""
        self.error: ApiError | None = None
        self._card = card
        self._ready = asyncio.Event()
        self._delta: pb.Delta | None = None
        self._last: pb.GenerateResponse | None = None
        self._closed = False

    def event(self, event: SendEvent) -> None:
        """Add further text."""
        self._add(event)

    def keep_alive(self) -> None:
        """Nothing: HTTP/2 has pings."""

    def final(self, final: SendFinal) -> None:
        """Add the rest, and the end."""
        if final.text or final.token_ids:
            self._add(final)
        self._last = messages.ended(self._card, final)
        if not final.outcome.ok:
            self.error = from_outcome(final.outcome, final.detail)
        self._close()

    def break_off(self, error: ApiError) -> None:
        """End the stream before its answer has ended."""
        if not self._closed:
            self.error = error
            self._close()

    async def take(self) -> pb.GenerateResponse | None:
        """Wait for the next message; None at the end."""
        while self._delta is None and not self._closed:
            self._ready.clear()
            await self._ready.wait()
        if self._delta is not None:
            delta, self._delta = self._delta, None
            return pb.GenerateResponse(delta=delta)
        last, self._last = self._last, None
        return last

    def _add(self, new: SendEvent | SendFinal) -> None:
        if self._delta is None:
            self._delta = pb.Delta()
        self._delta.offset = new.offset
        self._delta.text += new.text
        self._delta.token_ids.extend(new.token_ids)
        self._ready.set()

    def _close(self) -> None:
        self._closed = True
        self._ready.set()
