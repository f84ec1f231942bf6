"""One connection to an engine: requests one after the other, whose bodies are passed on as they arrive."""

import asyncio
from collections.abc import Callable
from typing import Final, cast

import httptools

from qlm.agents.engines.http.statuses import error_of
from qlm.domain.errors import EngineGarbledError, EngineRefusedError, EngineUnavailableError

Take = Callable[[bytes], None]
"""Receives the parts of a body, all of one read together; may raise an error of the engine."""

_REFUSAL_BYTES_MAX: Final = 64 * 1024
"""Bytes that are read of an answer with another status than 200."""


class LostError(EngineUnavailableError):
    """The connection ended before the answer did.

    Attributes:
        began: Some of the answer had come.
    """

    def __init__(self, why: str, *, began: bool) -> None:
        super().__init__(why)
        self.began = began


class Connection(asyncio.Protocol):
    """A connection that outlives its requests.

    Attributes:
        served: It has had an answer before, so the engine may have closed it as idle.
        idle_since_s: When its last answer ended, by the loop's clock.
        reusable: Another request may follow.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make the protocol of a new connection."""
        self.served = False
        self.idle_since_s = 0.0
        self.reusable = True
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._ended: asyncio.Future[None] | None = None
        self._take: Take | None = None
        self._parts: list[bytes] = []
        self._began = self._whole = False
        self._status = 0

    def send(self, request: bytes, take: Take) -> asyncio.Future[None]:
        """Send a request and pass on the body of its answer.

        Returns:
            Done at the end of the answer. Its error is a `LostError` if the connection ended before,
            that of `error_of` by another status than 200, else what `take` raised.
        """
        assert self._ended is None and self._transport is not None
        self._ended, self._take = self._loop.create_future(), take
        self._began = self._whole = False
        if self._transport.is_closing():
            self._settle(LostError("the connection was closed", began=False))
        else:
            self._transport.write(request)
        return self._ended

    def close(self, why: str = "the connection was closed") -> None:
        """Close at once; the engine aborts what it was to answer."""
        self.reusable = False
        self._settle(LostError(why, began=self._began))
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note that it is open."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has another base

    def data_received(self, data: bytes) -> None:
        """Parse what was read, and pass on its part of the body as one."""
        try:
            self._parser.feed_data(data)
            if self._parts:
                self._pass_on()
        except httptools.HttpParserError as error:
            self._break(EngineGarbledError(f"the engine sent {data[:200]!r}: {error!r}"))
        except (EngineUnavailableError, EngineRefusedError) as error:
            self._break(error)
        except Exception as error:
            self._break(EngineGarbledError(f"what the engine sent cannot be taken: {error!r}"))
        if self._whole:
            self._end()

    def eof_received(self) -> None:
        """Let the transport close."""
        self.reusable = False

    def connection_lost(self, exc: Exception | None) -> None:
        """End the answer under way, if any."""
        self.reusable = False
        self._settle(LostError(repr(exc) if exc else "the engine closed the connection", began=self._began))

    def on_status(self, status: bytes) -> None:
        """Note that the engine has read the request."""
        self._began = True

    def on_body(self, body: bytes) -> None:
        """Collect a part of the body."""
        self._parts.append(body)

    def on_message_complete(self) -> None:
        """Note the end of an answer."""
        self._status = self._parser.get_status_code()
        if self._status >= 200:  # else an interim answer
            self._whole = True
            self.reusable &= self._parser.should_keep_alive()

    def _pass_on(self) -> None:
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        if self._parser.get_status_code() != 200:
            if len(data) > _REFUSAL_BYTES_MAX:
                self._whole, self.reusable, self._status = True, False, self._parser.get_status_code()
            return  # shown at the end
        self._parts.clear()
        if self._take is None:
            raise EngineGarbledError(f"the engine sent {data[:200]!r} without a request")
        self._take(data)

    def _end(self) -> None:
        """Note the end of an answer."""
        self._whole, self.served, self.idle_since_s = False, True, self._loop.time()
        self.reusable &= self._ended is not None
        body = b"".join(self._parts)
        self._parts.clear()
        self._settle(None if self._status == 200 else error_of(self._status, body))
        if not self.reusable:
            self.close()

    def _break(self, error: Exception) -> None:
        self._settle(error)
        self.close()

    def _settle(self, error: Exception | None) -> None:
        ended, self._ended, self._take = self._ended, None, None
        if ended is None or ended.done():
            return
        if error is None:
            ended.set_result(None)
        else:
            ended.set_exception(error)
