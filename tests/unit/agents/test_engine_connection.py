import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.agents.engines.http.client import StreamClient
from qlm.agents.engines.http.connection import Connection, LostError
from qlm.agents.engines.http.statuses import StatusError
from qlm.domain.errors import EngineGarbledError, EngineRefusedError, EngineUnavailableError
from support.flaky import until

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
ONE = b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED + b"3\r\none\r\n2\r\n!!\r\n0\r\n\r\n"
OTHER = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nother"


class Wire(asyncio.Transport):
    """The engine's side of a connection, by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += bytes(data)

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


def open_connection(loop: asyncio.AbstractEventLoop) -> tuple[Connection, Wire]:
    connection, wire = Connection(loop), Wire()
    connection.connection_made(wire)
    return connection, wire


@given(st.lists(st.integers(0, len(ONE)), max_size=8))
def test_however_the_bytes_arrive_the_body_is_the_same(cuts: list[int]) -> None:
    loop = asyncio.new_event_loop()
    connection, _ = open_connection(loop)
    for answer, said in ((ONE, b"one!!"), (OTHER, b"other")):
        parts = list[bytes]()
        ended = connection.send(b"request", parts.append)
        for start, end in pairwise(sorted({0, *(min(cut, len(answer)) for cut in cuts), len(answer)})):
            assert not ended.done()
            connection.data_received(answer[start:end])
        assert ended.result() is None
        assert b"".join(parts) == said
        assert connection.served
        assert connection.reusable
    loop.close()


@pytest.mark.parametrize(
    ("data", "error", "said"),
    [
        (b"HTTP/1.1 400 Bad\r\ncontent-length: 2\r\n\r\nno", EngineRefusedError, "answered 400: no"),
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\nno", StatusError, "answered 404: no"),
        (b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n", EngineUnavailableError, "answered 503"),
        (b"HTTP/1.1 500 X\r\n\r\n" + b"x" * 100_000, EngineUnavailableError, "answered 500: xxx"),
        (b"SSH-2.0-OpenSSH\r\n", EngineGarbledError, "sent"),
        (CHUNKED + b"what\r\n", EngineGarbledError, "sent"),
    ],
)
async def test_other_answers_are_errors(data: bytes, error: type[Exception], said: str) -> None:
    connection, _ = open_connection(asyncio.get_running_loop())
    ended = connection.send(b"request", lambda part: None)
    connection.data_received(data)
    with pytest.raises(error, match=said):
        await ended


@pytest.mark.parametrize("came", [b"", CHUNKED + b"3\r\none\r\n"])
async def test_an_end_before_the_answers_is_a_loss(came: bytes) -> None:
    connection, _ = open_connection(asyncio.get_running_loop())
    ended = connection.send(b"request", lambda part: None)
    if came:
        connection.data_received(came)
    connection.eof_received()
    connection.connection_lost(None)
    with pytest.raises(LostError) as lost:
        await ended
    assert lost.value.began is bool(came)
    assert not connection.reusable


async def test_bytes_that_nobody_asked_for_end_a_connection() -> None:
    connection, wire = open_connection(asyncio.get_running_loop())
    ended = connection.send(b"request", lambda part: None)
    connection.data_received(OTHER)
    await ended
    connection.data_received(OTHER)
    assert wire.closed
    assert not connection.reusable


async def test_an_answer_that_closes_the_connection_is_the_last() -> None:
    connection, wire = open_connection(asyncio.get_running_loop())
    ended = connection.send(b"request", lambda part: None)
    connection.data_received(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 1\r\n\r\n1")
    await ended
    assert wire.closed
    assert not connection.reusable


@asynccontextmanager
async def engine(heads: list[bytes], closed: list[None]) -> AsyncIterator[int]:
    """An engine that answers each request with a part of a body, and ends no answer."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(CHUNKED + b"3\r\none\r\n")
        await reader.read()
        closed.append(None)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_a_cancelled_request_closes_its_connection() -> None:
    """The engine takes that for an abort."""
    heads, closed, parts = list[bytes](), list[None](), list[bytes]()
    async with engine(heads, closed) as port:
        client = StreamClient(
            f"http://me:se%3Acret@127.0.0.1:{port}/api", "/go", {"a": "b"}, connect_s=5, idle_max_s=4
        )
        asking = asyncio.create_task(client.post(b"{}", {"c": "d"}, parts.append))
        await until(lambda: parts)
        asking.cancel()
        await until(lambda: closed)
    assert parts == [b"one"]
    assert heads[0].startswith(b"POST /api/go HTTP/1.1\r\n")
    for line in (b"a: b", b"c: d", b"content-length: 2", b"authorization: Basic bWU6c2U6Y3JldA=="):
        assert b"\r\n" + line + b"\r\n" in heads[0]
