"""Clients: each sends one request, comes back until it has an answer, and notes all that it was shown."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import orjson

from qlm.domain.ids import RequestId
from qlm.simulator.system.connection import App, ConnectionBrokenError, Exchange, Head
from qlm.simulator.system.history import Accepted, Answered, History, Shown
from qlm.simulator.system.process import Process
from qlm.simulator.system.virtual_loop import VirtualLoop
from qlm.simulator.system.workload import Errand, Kind

RETRY_S: Final = 0.4
POLL_S: Final = 2.0
REBUILDING: Final = "state_rebuilding"
"""What a gateway says of a request that the store does not know, for a while after it was emptied."""
REBUILDING_S: Final = 12.0
"""How long a client believes that."""
UNKNOWN: Final = "request_not_found"
"""What a gateway says of a request that it has no reason to expect."""
UNSENT: Final = "never accepted"
"""End of a client that was not told whether its request was accepted, and may not send it again."""
LEFT: Final = "left"
"""End of a client that did not wait for its answer."""

Door = Callable[[], tuple[Process, App] | None]
"""Chooses a gateway that is up; None if none is."""


class Client:
    """One client. `run` ends when it knows the end of its request, or that it will not."""

    def __init__(self, errand: Errand, door: Door, loop: VirtualLoop, history: History) -> None:
        self._errand = errand
        self._door = door
        self._loop = loop
        self._history = history
        self._id: RequestId | None = None
        self._offset = 0
        self._text = ""
        self._events = 0
        self._breaks_after = errand.breaks_after
        self._over = False
        self._unknown_s = 0.0

    async def run(self) -> None:
        """Send the request at its time, and get its answer."""
        await asyncio.sleep(self._errand.at_s)
        tries = {Kind.STREAM: self._stream, Kind.WHOLE: self._whole, Kind.ASYNC: self._poll}
        one_try = tries[self._errand.kind]
        while not self._over:
            try:
                pause_s = await one_try()
            except ConnectionBrokenError:
                self._count("broken")
                pause_s = RETRY_S / 4
                if self._id is None and self._errand.key is None:
                    self._end(UNSENT)
            if not self._over:
                await asyncio.sleep(pause_s)

    # the three ways to an answer; each returns how long to wait before the next try

    async def _stream(self) -> float:
        exchange = self._resumed() if self._id is not None else self._posted()
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
        if self._errand.key is not None:
            headers["idempotency_key"] = self._errand.key
        return self._exchange("POST", "/v1/completions", self._errand.body, **headers)

    def _resumed(self) -> Exchange | None:
        self._count("resumes")
        return self._exchange("GET", f"/v1/requests/{self._id}/events", last_event_id=str(self._offset))

    def _exchange(self, method: str, path: str, body: bytes = b"", **headers: str) -> Exchange | None:
        found = self._door()
        if found is None:
            self._count("finds no gateway")
            return None
        return Exchange(*found, method, path, body, headers)

    async def _refused(self, exchange: Exchange, head: Head) -> float:
        """Come back after an overload or outage; a request that ended badly, or is unknown, is over."""
        error = orjson.loads(await exchange.body())["error"]
        self._count(f"refused {head.status} {error['code']}")
        if error["code"] == REBUILDING:
            self._unknown_s = self._unknown_s or self._loop.time()
            if self._loop.time() < self._unknown_s + REBUILDING_S:
                return POLL_S
        elif head.headers.get("x-should-retry") == "true" and (self._id or self._errand.key or _new(error)):
            return RETRY_S
        if self._id is None and "x-request-id" in head.headers and not _new(error):
            self._accepted(head.headers["x-request-id"])
        self._end(str(error["code"]))
        return RETRY_S

    def _accepted(self, id: str) -> None:
        if self._id is not None:
            return
        self._id = RequestId(id)
        self._history.add(Accepted(self._loop.time(), self._errand.number, self._id))
        if self._errand.cancels_after_s is not None:
            self._loop.call_later(self._errand.cancels_after_s, self._cancel)

    def _cancel(self) -> None:
        self._count("cancels")
        self._exchange("DELETE", f"/v1/requests/{self._id}")

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
        self._history.add(Shown(self._loop.time(), self._errand.number, offset, choice["text"]))
        if choice["finish_reason"] is not None:
            self._end(choice["finish_reason"])

    def _answered(self, answer: Any) -> None:
        choice = answer["choices"][0]
        self._text, self._offset = choice["text"], answer["usage"]["completion_tokens"]
        self._end(choice["finish_reason"])

    def _break(self) -> None:
        self._breaks_after = None
        self._count("breaks its stream")
        if self._errand.leaves:
            self._end(LEFT)

    def _end(self, end: str) -> None:
        self._over = True
        self._count(f"ends {end}")
        id = self._id or RequestId("")
        answered = Answered(self._loop.time(), self._errand.number, id, end, self._offset, self._text)
        self._history.add(answered)

    def _count(self, what: str) -> None:
        self._history.coverage[f"client {what}"] += 1


def _new(error: Any) -> bool:
    """Whether an error says that nothing was accepted."""
    return error["type"] == "rate_limit_error" or str(error["code"]).endswith("_unavailable")
