"""Open-loop client with little processor time that records the time of every token.

A connection per request is opened beforehand. While requests run, only the bytes that arrive and the time
are kept; HTTP and JSON are read afterwards. A usual client would spend a third of a core on a few thousand
events per second, and the engine has but two.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import httptools


class BadAnswerError(Exception):
    """An engine gave a wrong answer; the run is invalid."""


class Call(NamedTuple):
    """Request: seconds after the start, and the body for /inference/v1/generate."""

    at_s: float
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """Record of one request, in seconds from the start of the run.

    Attributes:
        due_s: When it was to be sent.
        sent_s: When it was sent.
        token_s: When each of its tokens arrived; at least one.
    """

    due_s: float
    sent_s: float
    token_s: tuple[float, ...]

    @property
    def latency_s(self) -> float:
        """Time from the planned sending to the last token."""
        return self.token_s[-1] - self.due_s

    @property
    def wait_s(self) -> float:
        """Time from sending to the first token."""
        return self.token_s[0] - self.sent_s


class _Connection(asyncio.Protocol):
    """Connection of one request; keeps received data with its time."""

    def __init__(self) -> None:
        self.arrived: list[tuple[float, bytes]] = []
        self.sent_s = 0.0
        self.closed = asyncio.Event()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not registered as one

    def send(self, request: bytes) -> None:
        assert self._transport is not None
        self.sent_s = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self.arrived.append((time.perf_counter(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def replay(url: str, calls: Sequence[Call], *, timeout_s: float = 300.0) -> list[Answer]:
    """Send each call at its time, within the millisecond of a timer, however slow the answers are.

    Calls that are due at once are sent one after the other in their order, within a few milliseconds.

    Args:
        url: Of the engine.
        calls: In order of time.
        timeout_s: For the whole run.

    Returns:
        In the order of the calls.

    Raises:
        BadAnswerError: An answer is an error, or breaks off.
        TimeoutError: The run took longer.
    """
    place = urlsplit(url)
    host, port = place.hostname or "127.0.0.1", place.port or 80
    loop = asyncio.get_running_loop()
    connections: list[_Connection] = []
    try:
        for _ in calls:
            _transport, connection = await loop.create_connection(_Connection, host, port)
            connections.append(connection)
        requests = [_request(f"{host}:{port}", call.body) for call in calls]
        start_s = time.perf_counter()
        async with asyncio.timeout(timeout_s):
            for call, connection, request in zip(calls, connections, requests, strict=True):
                if (left_s := start_s + call.at_s - time.perf_counter()) > 0:
                    await asyncio.sleep(left_s)
                connection.send(request)
            for connection in connections:
                await connection.closed.wait()
    finally:
        for connection in connections:
            connection.close()
    return [_read(call, one, start_s) for call, one in zip(calls, connections, strict=True)]


def _request(host: str, body: bytes) -> bytes:
    head = (
        f"POST /inference/v1/generate HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def _read(call: Call, connection: _Connection, start_s: float) -> Answer:
    wanted = json.loads(call.body)["sampling_params"]["max_tokens"]
    token_s = [at_s - start_s for at_s in token_times(connection.arrived)]
    if len(token_s) != wanted:
        raise BadAnswerError(f"an answer has {len(token_s)} tokens, expected {wanted}")
    return Answer(call.at_s, connection.sent_s - start_s, tuple(token_s))


class _Body:
    """Receiver of the body from httptools; must not raise, since httptools would hide the error."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.events: list[tuple[float, bytes]] = []
        self.rest = b""

    def on_body(self, body: bytes) -> None:
        *events, self.rest = (self.rest + body).split(b"\n\n")
        self.events += [(self.now_s, event.removeprefix(b"data: ")) for event in events]


def token_times(arrived: Sequence[tuple[float, bytes]]) -> list[float]:
    """Return the time of each token of a streamed answer, on the clock of `arrived`.

    Args:
        arrived: Bytes of one HTTP response as they came, with the time.

    Raises:
        BadAnswerError: It is not a stream of tokens.
    """
    body = _Body()
    parser = httptools.HttpResponseParser(body)
    for at_s, data in arrived:
        body.now_s = at_s
        parser.feed_data(data)
    if (status := parser.get_status_code()) != 200:
        raise BadAnswerError(f"the engine answered {status}: {body.rest[:300].decode(errors='replace')}")
    return [at_s for at_s, event in body.events for _ in range(_tokens(event))]


def _tokens(event: bytes) -> int:
    if event == b"[DONE]":
        return 0
    plain = json.loads(event)
    if "choices" not in plain:
        raise BadAnswerError(f"the engine said {event[:300].decode(errors='replace')}")
    return sum(len(choice.get("token_ids") or ()) for choice in plain["choices"])
