"""Hostile clients of `qlm serve`, on its own event loop: what never ends, what is slow, too many at once."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import orjson
import pytest

from support.gateway import until
from support.qlm_process import QLM, QlmProcess, emulated, serving
from support.raw_http import HEALTH, PIECE, POST, Connect, connecting

READ_BYTES_MAX = 8 * 1024 * 1024
BODY = orjson.dumps({"model": "mistral-7b", "prompt": "Hi", "max_tokens": 4})
WHOLE = POST + b"content-length: %d\r\n\r\n" % len(BODY) + BODY


@pytest.fixture(scope="module")
def process() -> Iterator[QlmProcess]:
    connections = {"headers_timeout_s": 0.5, "body_timeout_s": 0.5, "idle_timeout_s": 60}
    with serving(emulated("mistral-7b", connections=connections)) as running:
        yield running


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    async with connecting() as made:
        yield made


@pytest.mark.parametrize("start", [b"GET /healthz HTTP/1.1\r\nx-long: ", b"GET /"])
async def test_an_endless_head_is_refused(process: QlmProcess, connect: Connect, start: bytes) -> None:
    client = await connect(process.url)
    client.send(start)
    assert await client.send_endlessly(PIECE) < READ_BYTES_MAX
    await (await connect(process.url)).works()


async def test_slow_clients_are_refused(process: QlmProcess, connect: Connect) -> None:
    headers, body, idle = [await connect(process.url) for _ in range(3)]
    headers.send(HEALTH[:-4])
    body.send(WHOLE[:-1])
    assert await headers.refusal() == (408, "headers_timeout")
    assert await body.refusal() == (408, "body_timeout")
    await idle.ended()


async def test_a_client_that_ends_its_side_after_its_request_gets_the_answer(
    process: QlmProcess, connect: Connect
) -> None:
    client = await connect(process.url)
    client.send(WHOLE)
    client.writer.write_eof()
    received = await asyncio.wait_for(client.reader.read(), 60)
    head, _, answer = received.rpartition(b"\r\n\r\n")
    assert b"HTTP/1.1 200 OK" in head
    assert orjson.loads(answer)["usage"]["completion_tokens"] == 4


async def test_with_few_descriptors_it_serves_and_says_what_to_set(tmp_path: Path, connect: Connect) -> None:
    """Idle clients, more than there are descriptors, shut nobody out."""
    program = tmp_path / "qlm"
    program.write_text(f'#!/bin/sh\nulimit -n 1024\nexec {QLM} "$@"\n')
    program.chmod(0o755)
    with serving(emulated("mistral-7b"), program=program) as process:
        assert "this process may open 1024 files, enough for 512 connections" in process.log()
        assert "set LimitNOFILE=10512 in its unit" in process.log()
        for _ in range(1100):
            await connect(process.url)
        client = await connect(process.url)
        await client.works()
        client.send(WHOLE)
        assert (await client.answer())[0] == 200
        await until(lambda: len(list(Path(f"/proc/{process.pid}/fd").iterdir())) < 1024 - 256)
