"""Clients that end their side of the connection after the request, as some do, and clients that are gone."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest

from qlm.domain.outcome import Outcome
from qlm.gateway.http.connections.half_open import COMMENT, INTERIM, PROBES_S
from support.gateway import Cluster, running_cluster, until
from support.raw_http import HEALTH

ANSWER = "Hello, world!"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Run a cluster whose agent stops in the middle of each answer."""
    async with running_cluster(tmp_path) as running:
        running.agent.pause_at = 3
        yield running


def _post(version: str = "1.1", **fields: Any) -> bytes:
    body = orjson.dumps({"model": "emulated", "prompt": "Hi", **fields})
    head = f"POST /v1/completions HTTP/{version}\r\nhost: localhost\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def _connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    return await asyncio.open_connection(parts.hostname, parts.port)


@pytest.mark.parametrize("wait_s", [0.0, sum(PROBES_S) + 0.2])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_ends_its_side_gets_its_whole_answer(
    cluster: Cluster, stream: bool, wait_s: float
) -> None:
    reader, writer = await _connect(await cluster.gateway())
    writer.write(_post(stream=stream))
    writer.write_eof()
    await until(lambda: cluster.agent.leased)
    await asyncio.sleep(wait_s)  # the time of all probes, or none
    cluster.agent.go.set()
    answer = await asyncio.wait_for(reader.read(), 10)
    head, _, body = answer.replace(INTERIM, b"").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    if stream:
        events = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: {")]
        assert "".join(orjson.loads(event)["choices"][0]["text"] for event in events) == ANSWER
        assert b"data: [DONE]" in body
        assert answer.count(INTERIM) + answer.count(COMMENT) <= 1 + len(PROBES_S)
    else:
        assert b"connection: close" in head
        assert orjson.loads(body)["choices"][0]["text"] == ANSWER
        assert answer.count(INTERIM) <= 1 + len(PROBES_S)
    assert list(cluster.agent.ended.values()) == [Outcome.STOP]
    writer.close()


async def test_a_stream_before_a_further_request_is_whole_for_a_client_that_ends_its_side(
    cluster: Cluster,
) -> None:
    """Interim responses of the second request would be bytes of the stream."""
    reader, writer = await _connect(await cluster.gateway())
    writer.write(_post(stream=True) + HEALTH)
    writer.write_eof()
    begun = await asyncio.wait_for(reader.readuntil(COMMENT), 5)
    cluster.agent.go.set()
    answers = begun + await asyncio.wait_for(reader.read(), 10)
    stream, _, further = answers.partition(b"0\r\n\r\n")
    assert INTERIM not in stream.partition(b"HTTP/1.1 200")[2]
    assert b"data: [DONE]" in stream
    assert further.replace(INTERIM, b"").startswith(b"HTTP/1.1 200 OK")
    assert further.endswith(b'{"status":"ok"}')
    writer.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_is_gone_is_noticed_at_once(cluster: Cluster, stream: bool) -> None:
    """Its end looks the same, but the first probe is answered with a reset."""
    _, writer = await _connect(await cluster.gateway())
    writer.write(_post(stream=stream, resume_grace_s=0))
    await until(lambda: cluster.agent.leased)
    writer.close()
    await until(lambda: list(cluster.agent.ended.values()) == [Outcome.CANCELLED], timeout_s=2)


async def test_a_client_that_ends_its_side_before_its_body_is_gone(cluster: Cluster) -> None:
    reader, writer = await _connect(await cluster.gateway())
    writer.write(_post()[:-3])
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), 5) == b""
    assert not cluster.agent.leased
    writer.close()


async def test_an_old_client_that_ends_its_side_is_gone(cluster: Cluster) -> None:
    """HTTP/1.0 has no interim responses, so nothing shows whether it waits."""
    reader, writer = await _connect(await cluster.gateway())
    writer.write(_post("1.0"))
    await until(lambda: cluster.agent.leased)
    writer.write_eof()
    await until(lambda: list(cluster.agent.ended.values()) == [Outcome.CANCELLED])
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


async def test_idle_connections_end_with_their_client(cluster: Cluster) -> None:
    reader, writer = await _connect(await cluster.gateway())
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert b"200" in await reader.readline()
    writer.write_eof()
    await asyncio.wait_for(reader.read(), 3)
    writer.close()
