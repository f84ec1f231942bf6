"""ASGI responses: JSON, and answers that wait for a session."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import ClassVar, Generic, TypeVar

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from qlm.domain.shell.tasks import end_tasks
from qlm.gateway.api.errors import ApiError
from qlm.gateway.api.fields.openai import ErrorAnswer
from qlm.gateway.core.session_events import SendFinal
from qlm.gateway.http.connections.body import BODY, Body
from qlm.gateway.http.sinks import EventSource, WholeSource

Fields_co = TypeVar("Fields_co", covariant=True)


class Json(Response, Generic[Fields_co]):
    """A JSON answer. Handlers annotate the type of its fields, from which the HTTP reference is made."""

    STATUS: ClassVar[int] = 200

    def __init__(
        self, content: Fields_co, headers: Mapping[str, str] | None = None, status: int | None = None
    ) -> None:
        """Answer with `content`; only errors have another status than that of the class."""
        super().__init__(orjson.dumps(content), status or self.STATUS, headers, media_type="application/json")


class AcceptedJson(Json[Fields_co]):
    """A JSON answer to a call that is accepted but not done yet."""

    STATUS: ClassVar[int] = 202


class NotReady(Json[Fields_co]):
    """A JSON answer to a call that cannot be done now."""

    STATUS: ClassVar[int] = 503


class StoredJson(Response, Generic[Fields_co]):
    """JSON as it is in the store."""

    STATUS: ClassVar[int] = 200

    def __init__(self, content: bytes) -> None:
        """Answer with `content`."""
        super().__init__(content, self.STATUS, media_type="application/json")


class Html(Response):
    """A page."""

    def __init__(self, content: bytes, headers: Mapping[str, str]) -> None:
        """Answer with `content`."""
        super().__init__(content, headers=headers, media_type="text/html")


def error_answer(error: ApiError) -> Json[ErrorAnswer]:
    """Return the answer for an error."""
    return Json(error.body(), error.headers, error.status)


class _Waiting(Response, ABC):
    """An answer that waits for output, and notices if the client disconnects meanwhile."""

    def __init__(self, disconnected: Callable[[], None], headers: Mapping[str, str]) -> None:
        self._disconnected = disconnected
        self._own_headers = dict(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, and watch the connection meanwhile."""
        body: Body | None = scope.get(BODY)
        if body is None:  # another server
            await self._answer_beside_task(scope, receive, send)
            return
        body.watch(self._leave)
        try:
            await self._answer(scope, receive, send)
        except BaseException:
            self._leave()
            raise
        finally:
            body.watch(None)

    async def _answer_beside_task(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = asyncio.get_running_loop().create_task(self._watch(receive))
        try:
            await self._answer(scope, receive, send)
        except BaseException:
            self._leave()
            raise
        finally:
            await end_tasks([watch])

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._leave()

    @abstractmethod
    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""

    def _leave(self) -> None:
        self._disconnected()


class StreamAnswer(_Waiting):
    """Server-sent events of a session."""

    def __init__(
        self,
        sink: EventSource,
        disconnected: Callable[[], None],
        closed: Callable[[], None],
        headers: Mapping[str, str],
        refused: Callable[[ApiError], Response] = error_answer,
    ) -> None:
        """Stream what `sink` collects; call `disconnected` if the client disconnects, `closed` always.

        `refused` is the answer of a gateway that stops before the stream has begun.
        """
        super().__init__(disconnected, headers)
        self._refused = refused
        self._sink = sink
        self._closed = closed
        lines = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
            **headers,
        }
        self.status_code = 200
        self.raw_headers = [(name.encode(), value.encode()) for name, value in lines.items()]

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if self._sink.interrupted is not None:
                refusal = self._refused(self._sink.interrupted)
                refusal.headers.update(self._own_headers)
                await refusal(scope, receive, send)
                return
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            if scope.get("method") == "HEAD":
                # Nothing is ever written to such a client, so it would never be seen to leave.
                self._leave()
                await send({"type": "http.response.body", "body": b""})
                return
            body: Body | None = scope.get(BODY)
            self._sink.write = None if body is None else body.write
            more = True
            while more:
                data = await self._sink.take()
                more = not self._sink.ended
                await send({"type": "http.response.body", "body": data, "more_body": more})
            if self._sink.given_up:
                self._leave()
        finally:
            self._closed()

    def _leave(self) -> None:
        self._sink.close()
        super()._leave()


class WholeAnswer(_Waiting):
    """One JSON object at the end of a session."""

    def __init__(
        self,
        sink: WholeSource,
        disconnected: Callable[[], None],
        headers: Mapping[str, str],
        render: Callable[[SendFinal], Awaitable[Response]],
        refused: Callable[[ApiError], Response] = error_answer,
    ) -> None:
        """Answer with `render` of the end; call `disconnected` if the client disconnects before.

        `refused` is the answer if this gateway cannot wait for the end.
        """
        super().__init__(disconnected, headers)
        self._refused = refused
        self._sink = sink
        self._render = render

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        final = await self._sink.wait()
        if final is None:
            return
        response = self._refused(final) if isinstance(final, ApiError) else await self._render(final)
        response.headers.update(self._own_headers)
        await response(scope, receive, send)

    def _leave(self) -> None:
        self._sink.close()
        super()._leave()
