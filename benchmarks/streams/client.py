"""Cheap client of streams: raw connections, which look for the ends of events and nothing else.

    python -m benchmarks.streams.client PORT requests.json arrivals.json

A process of its own, so that its processor time is not QLM's. The input is a list of [time, body]; the output
has for each request the seconds from its time to each arrival, a read with at least one event, and its tokens
if the stream says how many.
"""

import asyncio
import re
import sys
import time
from pathlib import Path
from typing import Any, Final, cast

import orjson
import uvloop

_EVENT: Final = b"data: "
_DONE: Final = b"data: [DONE]"
_USAGE: Final = re.compile(rb'"completion_tokens":(\d+)')
_KEPT: Final = 1024
"""Bytes kept of the reads before: the last events may come in several."""


class Stream(asyncio.Protocol):
    """One request on a connection of its own.

    Args:
        message: Bytes of the request.
        due_s: When it is due, on the performance counter.

    Attributes:
        arrivals: Seconds from `due_s` to each read with an event.
        tokens: Those of its answer; None if it does not say so.
        ended: Result: how the stream ended, empty if well.
    """

    def __init__(self, message: bytes, due_s: float) -> None:
        self.arrivals: list[float] = []
        self.tokens: int | None = None
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._message = message
        self._due_s = due_s
        self._transport: asyncio.Transport | None = None
        self._last = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has another base
        self._transport.write(self._message)

    def data_received(self, data: bytes) -> None:
        if _EVENT in data and not data.startswith(_DONE):
            self.arrivals.append(time.perf_counter() - self._due_s)
        seen = self._last + data
        self._last = seen[-_KEPT:]
        if _DONE in seen:
            found = _USAGE.findall(seen)
            # LiteLLM's proxy puts a count of 0 beside completions, which have none.
            self.tokens = (int(found[-1]) or None) if found else None
            self._end("")
        elif not self.arrivals and not data.startswith(b"HTTP/1.1 200"):
            self._end(data[:200].decode(errors="replace"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end("the connection was closed")

    def _end(self, how: str) -> None:
        if not self.ended.done():
            self.ended.set_result(how)
            assert self._transport is not None
            self._transport.close()


def _message(port: int, body: dict[str, Any]) -> bytes:
    data, route = orjson.dumps(body), "chat/completions" if "messages" in body else "completions"
    head = (
        f"POST /v1/{route} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + data


async def play(
    port: int, requests: list[tuple[float, dict[str, Any]]]
) -> list[tuple[list[float], int | None]]:
    """Send each request at its time; return the arrivals and tokens of all.

    Raises:
        RuntimeError: A stream did not end well.
    """
    loop = asyncio.get_running_loop()
    messages = [(at_s, _message(port, body)) for at_s, body in requests]
    began_s = time.perf_counter() + 0.05
    streams: list[Stream] = []

    async def start(due_s: float, message: bytes) -> None:
        stream = Stream(message, due_s)
        streams.append(stream)
        await loop.create_connection(lambda: stream, "127.0.0.1", port)

    starting = []
    for at_s, message in messages:
        due_s = began_s + at_s
        await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        starting.append(loop.create_task(start(due_s, message)))
    await asyncio.gather(*starting)
    for stream in streams:
        if how := await stream.ended:
            raise RuntimeError(f"a stream ended badly: {how}")
    return [(stream.arrivals, stream.tokens) for stream in streams]


def main() -> None:
    """Send the requests of one file, and write their arrivals to another."""
    port, given, made = sys.argv[1:]
    requests = [(at_s, body) for at_s, body in orjson.loads(Path(given).read_bytes())]
    Path(made).write_bytes(orjson.dumps(uvloop.run(play(int(port), requests))))


if __name__ == "__main__":
    main()
