"""Clients: each sends one request, retries until it has an answer, and records all that it receives."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import orjson

from qlm.domain.ids import RequestId
from simulation.connection import App, ConnectionBrokenError, Exchange, Head
from simulation.history import Accepted, Answered, History, TextReceived
from simulation.process import Process
from simulation.virtual_loop import VirtualLoop
from simulation.workload import ClientScript, Kind

RETRY_S: Final = 0.4
RETRY_MAX_S: Final = 1.6
"""Pauses before a try is repeated: each is twice as long as the one before, up to a limit."""
POLL_S: Final = 2.0
REBUILDING: Final = "state_rebuilding"
"""Error code for a request that the store does not know, for a while after the store was emptied."""
REBUILDING_S: Final = 30.0
"""Time for which a client retries on it: a store that refuses writes, twice for 6 s, cannot be filled."""
UNKNOWN: Final = "request_not_found"
"""Error code for an unknown request."""
UNSENT: Final = "never accepted"
"""End of a client that does not know whether its request was accepted, and may not repeat it."""
LEFT: Final = "left"
"""End of a client that left before its answer."""

ChooseGateway = Callable[[], tuple[Process, App] | None]
"""Draws a gateway that is up; None if there is none."""


class Client:
    """One client. `run` returns when it has the end of its request, or gives up."""

    def __init__(
        self, script: ClientScript, choose_gateway: ChooseGateway, loop: VirtualLoop, history: History
    ) -> None:
        self._script = script
        self._choose_gateway = choose_gateway
        self._loop = loop
        self._history = history
        self._id: RequestId | None = None
        self._offset = 0
        self._text = ""
        self._events = 0
        self._breaks_after = script.breaks_after
        self._over = False
        self._unknown_s = 0.0
        self._pause_s = RETRY_S / 2

    async def run(self) -> None:
        """Send the request at its time, and wait for its end."""
        await asyncio.sleep(self._script.at_s)
        tries = {Kind.STREAM: self._stream, Kind.WHOLE: self._whole, Kind.ASYNC: self._poll}
        one_try = tries[self._script.kind]
        while not self._over:
            try:
                pause_s = await one_try()
            except ConnectionBrokenError:
                self._count("broken")
                pause_s = RETRY_S / 4
                if self._id is None and self._script.key is None:
                    self._end(UNSENT)
            if not self._over:
                await asyncio.sleep(pause_s)

    # one method per form of the answer; each returns the time until the next try

    async def _stream(self) -> float:
        exchange = self._resumed() if self._id is not None else self._posted(x_qlm_stream="resumable")
        if exchange is None:
            return RETRY_S
        head = await exchange.head()
        if head.status != 200:
            return await self._refused(exchange, head)
        if self._id is None:
            self._offset, self._text = 0, ""
            self._accepted(head.headers["x-request-id"])
        pending = b""
        while part := await exchange.read():
            *frames, pending = (pending + part).split(b"\n\n")
            for frame in frames:
                self._frame(frame)
            if not self._over and self._breaks_after is not None and self._events >= self._breaks_after:
                exchange.leave()
                self._break()
                return RETRY_S
        if not self._over:
            raise ConnectionBrokenError
        return RETRY_S

    async def _whole(self) -> float:
        exchange = self._posted()
        if exchange is None:
            return RETRY_S
        head = await exchange.head()
        if head.status != 200:
            return await self._refused(exchange, head)
        answer = orjson.loads(await exchange.body())
        self._accepted(head.headers["x-request-id"])
        self._answered(answer)
        return RETRY_S

    async def _poll(self) -> float:
        if self._id is None:
            exchange = self._posted(prefer="respond-async")
            if exchange is None:
                return RETRY_S
            head = await exchange.head()
            if head.status != 202:
                return await self._refused(exchange, head)
            self._accepted(orjson.loads(await exchange.body())["id"])
            return POLL_S
        exchange = self._exchange("GET", f"/v1/requests/{self._id}")
        if exchange is None:
            return RETRY_S
        head = await exchange.head()
        if head.status != 200:
            return await self._refused(exchange, head)
        status = orjson.loads(await exchange.body())
        if "response" in status:
            self._answered(status["response"])
        elif status["outcome"] is not None:
            self._end(status["outcome"])
        return POLL_S

    # steps

    def _posted(self, **headers: str) -> Exchange | None:
        if self._script.key is not None:
            headers["idempotency_key"] = self._script.key
        return self._exchange("POST", "/v1/completions", self._script.body, **headers)

    def _resumed(self) -> Exchange | None:
        self._count("resumes")
        return self._exchange("GET", f"/v1/requests/{self._id}/events", last_event_id=str(self._offset))

    def _exchange(self, method: str, path: str, body: bytes = b"", **headers: str) -> Exchange | None:
        found = self._choose_gateway()
        if found is None:
            self._count("finds no gateway")
            return None
        return Exchange(*found, method, path, body, headers)

    async def _refused(self, exchange: Exchange, head: Head) -> float:
        """Retry after an overload or outage; end on any other error. Return the time until the next try."""
        error = orjson.loads(await exchange.body())["error"]
        self._count(f"refused {head.status} {error['code']}")
        if error["code"] == REBUILDING:
            self._unknown_s = self._unknown_s or self._loop.time()
            if self._loop.time() < self._unknown_s + REBUILDING_S:
                return POLL_S
        elif head.headers.get("x-should-retry") == "true" and (
            self._id or self._script.key or _not_accepted(error)
        ):
            self._pause_s = min(2 * self._pause_s, RETRY_MAX_S)
            return self._pause_s
        if self._id is None and "x-request-id" in head.headers and not _not_accepted(error):
            self._accepted(head.headers["x-request-id"])
        self._end(str(error["code"]))
        return RETRY_S

    def _accepted(self, id: str) -> None:
        if self._id is not None:
            return
        self._id = RequestId(id)
        self._history.add(Accepted(self._loop.time(), self._script.number, self._id))
        if self._script.cancels_after_s is not None:
            self._loop.call_later(self._script.cancels_after_s, self._cancel)

    def _cancel(self) -> None:
        self._count("cancels")
        self._exchange("POST", f"/v1/requests/{self._id}/cancel")

    def _frame(self, frame: bytes) -> None:
        offset, error = self._offset, False
        for line in frame.split(b"\n"):
            name, _, value = line.partition(b": ")
            if name == b"id":
                offset = int(value)
            elif name == b"event":
                error = True
            elif name == b"data" and value != b"[DONE]" and not self._over:
                self._data(orjson.loads(value), offset, error=error)

    def _data(self, data: Any, offset: int, *, error: bool) -> None:
        if error:
            self._end(str(data["error"]["code"]))
            return
        choice = data["choices"][0]
        self._events += 1
        self._offset = offset
        self._text += choice["text"]
        self._history.add(TextReceived(self._loop.time(), self._script.number, offset, choice["text"]))
        if choice["finish_reason"] is not None:
            self._end(choice["finish_reason"])

    def _answered(self, answer: Any) -> None:
        choice = answer["choices"][0]
        self._text, self._offset = choice["text"], answer["usage"]["completion_tokens"]
        self._end(choice["finish_reason"])

    def _break(self) -> None:
        self._breaks_after = None
        self._count("breaks its stream")
        if self._script.leaves:
            self._end(LEFT)

    def _end(self, end: str) -> None:
        self._over = True
        self._count(f"ends {end}")
        id = self._id or RequestId("")
        answered = Answered(self._loop.time(), self._script.number, id, end, self._offset, self._text)
        self._history.add(answered)

    def _count(self, what: str) -> None:
        self._history.coverage[f"client {what}"] += 1


def _not_accepted(error: Any) -> bool:
    """Return whether an error means that the request was not accepted."""
    return error["type"] == "rate_limit_error" or str(error["code"]).endswith("_unavailable")
