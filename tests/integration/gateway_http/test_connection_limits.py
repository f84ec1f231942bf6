"""Clients that send too much, too slowly or too often, on a real listener with small limits."""

import asyncio
import logging
import time
from functools import partial
from typing import Any

import httpx
import orjson
import pytest

from qlm.gateway.core import open_connections
from qlm.gateway.core.connection_limits import UNREAD_BYTES_MAX, Breach, ConnectionLimits
from qlm.gateway.core.limits import GatewayLimits
from support.gateway import Cluster, until
from support.raw_http import HEALTH, PIECE, POST, Client, Connect

MIB = 1024 * 1024
READ_BYTES_MAX = 8 * MIB
"""More than the buffers of two sockets on loopback, and a small part of what an endless client sends."""

LONG_S = 3600.0


def limits(**more: Any) -> ConnectionLimits:
    """Return limits of which only the given ones can be passed within the time of a test."""
    patient: dict[str, Any] = {
        "headers_timeout_s": LONG_S,
        "body_timeout_s": LONG_S,
        "idle_timeout_s": LONG_S,
        "shared_addresses": (),
    }
    return ConnectionLimits(**patient | more)


async def counted(url: str, status: int, reason: str) -> float:
    """Return how many refusals of a kind the gateway has counted."""
    async with httpx.AsyncClient(base_url=url) as http:
        lines = (await http.get("/metrics")).text.splitlines()
    name = f'qlm_gateway_refused_total{{reason="{reason}",status="{status}"}} '
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


# --- sizes and counts


@pytest.mark.parametrize(
    ("start", "piece", "refused"),
    [
        (b"GET /healthz HTTP/1.1\r\nx-long: ", PIECE, (431, "headers_too_large")),
        (b"GET /healthz HTTP/1.1\r\n", PIECE, (431, "headers_too_large")),
        (b"GET /healthz HTTP/1.1\r\n", b"x-line: of many\r\n" * 3000, (431, "headers_too_large")),
        (b"GET /", PIECE, (414, "url_too_long")),
        (b"", b"\r\n" * 30_000, (431, "headers_too_large")),
        (POST + b"transfer-encoding: chunked\r\n\r\n0\r\nx-trailer: ", PIECE, (431, "headers_too_large")),
        (POST + b"transfer-encoding: chunked\r\n\r\n5;note=", PIECE, (431, "headers_too_large")),
    ],
    ids=["value", "name", "lines", "url", "blank lines", "trailer", "chunk extension"],
)
async def test_what_never_ends_is_refused_and_not_collected(
    cluster: Cluster, connect: Connect, start: bytes, piece: bytes, refused: tuple[int, str]
) -> None:
    url = await cluster.gateway(connections=limits())
    client = await connect(url)
    client.send(start)
    assert await client.send_endlessly(piece) < READ_BYTES_MAX
    await until(lambda: _equals(counted(cluster.admin_urls[url], *refused), 1))


async def _equals(value: Any, expected: float) -> bool:
    return bool(await value == expected)


@pytest.mark.parametrize(
    ("request_bytes", "refused"),
    [
        (b"GET /" + b"u" * 300 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n", (414, "url_too_long")),
        (HEALTH[:-2] + b"a: b\r\n" * 10 + b"\r\n", (431, "headers_too_large")),
        (HEALTH[:-2] + b"a: " + b"b" * 1024 + b"\r\n\r\n", (431, "headers_too_large")),
        (b"BREW /pot HTTP/1.1\r\nhost: localhost\r\n\r\n", (400, "malformed_http")),
    ],
)
async def test_a_request_beyond_a_limit_gets_the_reason(
    cluster: Cluster, connect: Connect, request_bytes: bytes, refused: tuple[int, str]
) -> None:
    small = limits(url_bytes_max=256, headers_max=10, header_bytes_max=1024)
    url = await cluster.gateway(connections=small)
    client = await connect(url)
    client.send(request_bytes)
    assert await client.refusal() == refused
    assert await counted(cluster.admin_urls[url], *refused) == 1


async def test_a_request_at_the_limits_is_answered(cluster: Cluster, connect: Connect) -> None:
    url = await cluster.gateway(connections=limits(url_bytes_max=256, headers_max=10, header_bytes_max=1024))
    client = await connect(url)
    client.send(b"GET /healthz?" + b"u" * (256 - 9) + b" HTTP/1.1\r\nhost: localhost\r\n" + b"a: b\r\n" * 9)
    client.send(b"\r\n")
    assert (await client.answer())[0] == 200
    padding = 1024 - len("hostlocalhost") - 4 - len("a") - 4
    client.send(HEALTH[:-2] + b"a: " + b"b" * padding + b"\r\n\r\n")
    assert (await client.answer())[0] == 200


async def test_a_body_that_nobody_reads_ends_its_connection(cluster: Cluster, connect: Connect) -> None:
    """It is refused for its headers at once; some clients read the answer only after they have sent."""
    url = await cluster.gateway(connections=limits())
    client = await connect(url)
    client.send(POST.replace(b"application/json", b"text/plain") + b"content-length: 1000000000\r\n\r\n")
    assert (await client.answer())[0] == 415
    assert await client.send_endlessly(PIECE) < UNREAD_BYTES_MAX + READ_BYTES_MAX
    short = await connect(url)
    short.send(POST.replace(b"application/json", b"text/plain") + b"content-length: 65536\r\n\r\n" + PIECE)
    assert (await short.answer())[0] == 415
    await short.works()


async def test_what_nobody_reads_counts_for_each_request(cluster: Cluster, connect: Connect) -> None:
    url = await cluster.gateway(connections=limits())
    client = await connect(url)
    for _ in range(3):
        client.send(POST.replace(b"application/json", b"text/plain") + b"content-length: 524288\r\n\r\n")
        assert (await client.answer())[0] == 415
        client.send(PIECE * 8)
    await client.works()


# --- times


async def test_headers_have_a_time(cluster: Cluster, connect: Connect) -> None:
    url = await cluster.gateway(connections=limits(headers_timeout_s=0.3))
    client = await connect(url)
    client.send(HEALTH[:-5])
    assert await client.refusal() == (408, "headers_timeout")
    again = await connect(url)
    await again.works()
    again.send(HEALTH[:5])
    assert await again.refusal() == (408, "headers_timeout")
    assert await counted(cluster.admin_urls[url], 408, "headers_timeout") == 2


async def test_a_connection_without_a_request_is_closed(cluster: Cluster, connect: Connect) -> None:
    url = await cluster.gateway(connections=limits(headers_timeout_s=0.3))
    await (await connect(url)).ended()
    assert await counted(cluster.admin_urls[url], 408, "headers_timeout") == 0


async def test_a_connection_is_kept_for_the_next_request(cluster: Cluster, connect: Connect) -> None:
    url = await cluster.gateway(connections=limits(idle_timeout_s=1))
    client = await connect(url)
    await client.works()
    await client.works()
    await client.ended()


async def test_a_body_has_a_time(cluster: Cluster, connect: Connect) -> None:
    url = await cluster.gateway(connections=limits(body_timeout_s=0.3))
    client = await connect(url)
    client.send(POST + b"content-length: 1000\r\n\r\n{")
    assert await client.refusal() == (408, "body_timeout")
    assert await counted(cluster.admin_urls[url], 408, "body_timeout") == 1


async def test_a_slow_body_at_the_least_pace_is_taken(cluster: Cluster, connect: Connect) -> None:
    """It takes longer than the fixed time; each byte adds some."""
    url = await cluster.gateway(connections=limits(body_timeout_s=1, body_bytes_per_s_min=10))
    body = orjson.dumps({"model": "emulated", "prompt": "Hi"}) + b" " * 60
    client = await connect(url)
    client.send(POST + b"content-length: %d\r\n\r\n" % len(body))
    begin_s = time.monotonic()
    for at in range(0, len(body), 40):
        client.send(body[at : at + 40])
        await asyncio.sleep(1)  # the pace is what is tested
    assert time.monotonic() - begin_s > 2
    assert (await client.answer())[0] == 200


async def test_no_time_runs_while_a_former_request_is_answered(cluster: Cluster, connect: Connect) -> None:
    cluster.agent.pause_at = 3
    short = limits(headers_timeout_s=0.2, body_timeout_s=0.2)
    url = await cluster.gateway(connections=short)
    body = orjson.dumps({"model": "emulated", "prompt": "Hi"})
    whole = POST + b"content-length: %d\r\n\r\n" % len(body) + body
    client = await connect(url)
    client.send(whole + HEALTH[:5])
    await until(lambda: cluster.agent.leased)
    await asyncio.sleep(1.5)  # several checks
    client.send(HEALTH[5:])
    cluster.agent.go.set()
    assert (await client.answer())[1]["choices"][0]["text"] == "Hello, world!"
    assert (await client.answer())[0] == 200


# --- all connections


async def test_unfinished_bodies_have_a_sum(cluster: Cluster, connect: Connect) -> None:
    url = await cluster.gateway(
        connections=limits(unfinished_bytes_max=65_536), limits=GatewayLimits(body_bytes_max=MIB)
    )
    slow = await connect(url)
    slow.send(POST + b"content-length: 100000\r\n\r\n" + b" " * 60_000)
    await until(lambda: _busy(slow))
    body = orjson.dumps({"model": "emulated", "prompt": "Hi"})
    fast = await connect(url)
    fast.send(POST + b"content-length: %d\r\n\r\n" % (20_000 + len(body)) + b" " * 20_000)
    assert await slow.refusal() == (503, "too_many_unfinished_bodies")
    assert "retry-after: 1" in slow.head
    fast.send(body)
    assert (await fast.answer())[0] == 200
    assert await counted(cluster.admin_urls[url], 503, "too_many_unfinished_bodies") == 1


async def _busy(client: Client) -> bool:
    """Return whether a client's bytes have left it; the gateway then reads them before any later ones."""
    await client.writer.drain()
    return client.writer.transport.get_write_buffer_size() == 0


async def test_waiting_connections_make_room_for_new_ones(cluster: Cluster, connect: Connect) -> None:
    url = await cluster.gateway(connections=limits(connections_max=3))
    idle = [await connect(url) for _ in range(3)]
    for client in idle:
        await client.works()
    newest = await connect(url)
    await newest.works()
    await idle[0].ended()
    await idle[1].works()


async def test_in_a_burst_the_first_are_answered_and_all_others_read_why_not(
    cluster: Cluster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_connections, "FIRST_BYTES_S", 60.0)
    url = await cluster.gateway(connections=limits(connections_max=3))
    burst = [await connect(url) for _ in range(9)]
    for client in burst[:3]:
        await client.works()
    for client in burst[3:]:
        assert await client.refusal() == (503, "too_many_connections")


async def test_connections_beyond_the_limit_are_refused_while_all_are_in_use(
    cluster: Cluster, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    url = await cluster.gateway(connections=limits(connections_max=3))
    busy = [await connect(url) for _ in range(3)]
    for client in busy:
        await client.works()
        client.send(HEALTH[:5])
    for client in busy:
        await until(partial(_busy, client))
    refused = [await connect(url) for _ in range(4)]
    with caplog.at_level(logging.WARNING):
        for client in refused:
            assert await client.refusal() == (503, "too_many_connections")
            assert "retry-after: 1" in client.head
    said = [each for each in caplog.messages if "too_many_connections" in each]
    assert len(said) == 1 and "127.0.0.1" in said[0]
    for client in busy:
        client.send(HEALTH[5:])
        assert (await client.answer())[0] == 200
    await until(lambda: _equals(counted(cluster.admin_urls[url], 503, "too_many_connections"), 4))


async def test_one_address_has_a_limit_of_its_own(cluster: Cluster, connect: Connect) -> None:
    url = await cluster.gateway(connections=limits(per_address_max=2))
    here = [await connect(url, "127.0.0.7") for _ in range(3)]
    for client in here[:2]:
        await client.works()
    assert await here[2].refusal() == (503, "too_many_connections_of_address")
    assert await counted(cluster.admin_urls[url], 503, "too_many_connections_of_address") == 1
    here[0].writer.close()

    async def admitted() -> bool:
        client = await connect(url, "127.0.0.7")
        client.send(HEALTH)
        return (await client.answer())[0] == 200

    await until(admitted)


async def test_addresses_that_many_share_have_no_limit(cluster: Cluster, connect: Connect) -> None:
    url = await cluster.gateway(connections=limits(per_address_max=2, shared_addresses=("127.0.0.0/24",)))
    clients = [await connect(url, "127.0.0.7") for _ in range(5)]
    for client in clients:
        await client.works()


async def test_refusals_of_callers_are_counted(cluster: Cluster) -> None:
    url = await cluster.gateway()
    async with httpx.AsyncClient(base_url=url) as http:
        await http.get("/healthz", headers={"host": "evil.example"})
        await http.get("/healthz", headers={"origin": "https://evil.example"})
        await http.post("/v1/completions", content=b"{}", headers={"content-type": "text/plain"})
    assert await counted(cluster.admin_urls[url], 421, "host_not_allowed") == 1
    assert await counted(cluster.admin_urls[url], 403, "origin_not_allowed") == 1
    assert await counted(cluster.admin_urls[url], 415, "unsupported_media_type") == 1


async def test_nothing_is_left_of_connections_that_have_ended(cluster: Cluster, connect: Connect) -> None:
    """All places are free again, whatever became of the connections that had them."""
    small = limits(per_address_max=8, headers_timeout_s=0.3, body_timeout_s=0.3, unfinished_bytes_max=65_536)
    url = await cluster.gateway(connections=small)
    starts = (b"", HEALTH[:9], POST + b"content-length: 900\r\n\r\n{", b"nonsense\r\n\r\n", b"\r\n")
    clients = [await connect(url, "127.0.0.7") for _ in range(8)]
    for number, client in enumerate(clients):
        client.send(starts[number % len(starts)])
        if number % 2:
            client.writer.write_eof()
    for client in clients:
        await asyncio.wait_for(client.reader.read(), 20)
        client.writer.close()

    async def all_admitted() -> bool:
        again = [await connect(url, "127.0.0.7") for _ in range(8)]
        for client in again:
            client.send(HEALTH)
        answers = [(await client.answer())[0] for client in again]
        for client in again:
            client.writer.close()
        return answers == [200] * 8

    await until(all_admitted)
    expected = {Breach.HEADERS_LATE, Breach.BODY_LATE, Breach.MALFORMED}
    assert expected <= set(await _counted_codes(cluster.admin_urls[url]))


async def _counted_codes(url: str) -> list[str]:
    async with httpx.AsyncClient(base_url=url) as http:
        lines = (await http.get("/metrics")).text.splitlines()
    return [
        line.split('reason="')[1].split('"')[0]
        for line in lines
        if line.startswith("qlm_gateway_refused_total")
    ]
