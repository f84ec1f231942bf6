"""A gateway under some thousand malformed requests: no 5xx, no traceback, no answer to another's prompt.

`make bench ARGS="fuzz"` sends many more to whole clusters.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from grpc import aio

from benchmarks.fuzz.http_requests import http_request
from benchmarks.fuzz.rpc_calls import rpc_call
from benchmarks.fuzz.senders import RpcSender, send_http
from benchmarks.fuzz.verdict import Finding
from benchmarks.fuzz.wire import Wire
from benchmarks.steady import answered_ids
from qlm.domain.request import Request
from support.gateway import Cluster, running_cluster
from support.rpc import rpc_gateway

SEED = 7
HTTP = 2000
RPC = 600
CONNECTIONS = 16
MODEL = "emulated"


def _answer(request: Request) -> Sequence[int]:
    """Answer as the emulated model does."""
    return answered_ids(request.prompt_ids, request.sampling.max_tokens)


async def _http(cluster: Cluster, url: str, statuses: Counter[str]) -> list[Finding]:
    place, numbers = urlsplit(url), iter(range(HTTP))
    found: list[Finding | None] = []

    async def send() -> None:
        wire = Wire(place.hostname or "", place.port or 0)
        for number in numbers:
            request = http_request(SEED, number, MODEL, place.netloc.encode())
            found.append(await send_http(wire, request, statuses))
        await wire.close()

    await asyncio.gather(*(send() for _ in range(CONNECTIONS)))
    assert len(found) == HTTP
    return [each for each in found if each is not None]


async def test_malformed_http_requests(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    statuses: Counter[str] = Counter()
    async with running_cluster(tmp_path) as cluster:
        cluster.agent.answer, cluster.agent.chunk = _answer, 600
        findings = await _http(cluster, await cluster.gateway(), statuses)
    assert findings == []
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]
    assert statuses["200"] > 100 and statuses["202"] and statuses["400"] > 300


async def test_malformed_grpc_calls(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    statuses: Counter[str] = Counter()
    async with running_cluster(tmp_path) as cluster, rpc_gateway(cluster) as (address, _):
        cluster.agent.answer, cluster.agent.chunk = _answer, 600
        async with aio.insecure_channel(address) as channel:
            sender = RpcSender(channel)
            found = [await sender.send(rpc_call(SEED, n, MODEL), statuses) for n in range(RPC)]
    assert [each for each in found if each is not None] == []
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]
    assert statuses["OK"] > 50 and statuses["INVALID_ARGUMENT"] > 50
