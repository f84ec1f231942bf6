"""Clients that offer another protocol with their requests, as Java's does with each: they are answered."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import pytest

from benchmarks.fuzz.wire import Answer, Wire
from qlm.domain.outcome import Outcome
from support.gateway import running_cluster, until

OFFER = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
BODY = orjson.dumps({"model": "emulated", "prompt": "Hi"})
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
SIZED = b"content-length: %d\r\n\r\n%b" % (len(BODY), BODY)


@pytest.fixture
async def wire(tmp_path: Path) -> AsyncIterator[Wire]:
    async with running_cluster(tmp_path) as cluster:
        place = urlsplit(await cluster.gateway())
        client = Wire(place.hostname or "", place.port or 0)
        yield client
        await client.close()


def _text(answer: Answer) -> str:
    assert answer.status == 200, answer.body
    text: str = orjson.loads(answer.body)["choices"][0]["text"]
    return text


@pytest.mark.parametrize("rest", [SIZED, CHUNKED], ids=["sized", "chunked"])
@pytest.mark.parametrize("offer", [OFFER, OFFER.replace(b"h2c", b"websocket")], ids=["h2c", "websocket"])
async def test_the_body_of_a_request_with_an_offer_is_read(wire: Wire, offer: bytes, rest: bytes) -> None:
    for _ in range(3):
        assert _text(await wire.ask(HEAD + offer + rest)) == "Hello, world!"
    assert _text(await wire.ask(HEAD + rest)) == "Hello, world!"


async def test_a_request_with_an_offer_may_come_in_pieces(wire: Wire) -> None:
    place = wire.address
    reader, writer = await asyncio.open_connection(*place)
    whole = HEAD + OFFER + SIZED + b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    for at in range(0, len(whole), 7):
        writer.write(whole[at : at + 7])
        await writer.drain()
        await asyncio.sleep(0)
    answered = (await reader.read()).decode()
    assert answered.count("HTTP/1.1 200 OK") == 2 and "Hello, world!" in answered
    writer.close()


async def test_an_offer_does_not_keep_a_connection_that_the_client_closes(wire: Wire) -> None:
    head = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + OFFER + b"connection: close\r\n\r\n"
    assert (await wire.ask(head)).closes


@pytest.mark.parametrize("target", [b"localhost:1", b"/v1/models"])
async def test_a_tunnel_is_refused(wire: Wire, target: bytes, caplog: pytest.LogCaptureFixture) -> None:
    answers = await wire.tell(b"CONNECT " + target + b" HTTP/1.1\r\nhost: localhost\r\n\r\nmore")
    assert [each.status for each in answers] == [400]
    assert caplog.records == []


async def test_offers_and_bad_requests_leave_no_line_in_the_log(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    _text(await wire.ask(HEAD + OFFER + SIZED))
    assert [each.status for each in await wire.tell(b"no request\r\n\r\n")] == [400]
    assert caplog.records == []


async def test_all_requests_of_a_client_that_leaves_end_though_they_came_at_once(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        cluster.agent.pause_at = 3
        place = urlsplit(await cluster.gateway())
        _, writer = await asyncio.open_connection(place.hostname, place.port)
        writer.write((HEAD + SIZED) * 3)
        await until(lambda: len(cluster.agent.leased) == 1)
        writer.close()
        await until(lambda: list(cluster.agent.ended.values()) == [Outcome.CANCELLED])


async def test_a_client_that_expects_to_be_asked_for_a_broken_body_is_refused(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    broken = b"expect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\nno chunk\r\n"
    assert [each.status for each in await wire.tell(HEAD + broken)] == [400]
    assert not [record for record in caplog.records if record.exc_info]
