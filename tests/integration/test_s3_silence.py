"""A bucket that takes connections and answers nothing: each route says so in a bounded time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from qlm.gateway.files.s3.storage import storage_of_bucket
from support.gateway import SystemClock, running_cluster, until
from support.s3 import new_bucket
from support.wire import Wire

MIB = 1024 * 1024

LIMIT_S = 10.0
"""As docs/batches.md promises with the default of `files.s3.timeout_s`."""

BUSY_S = 5.0
"""Time that a busy machine may add."""

BATCH = {"endpoint": "/v1/completions", "completion_window": "24h"}


@pytest.fixture
async def wire(s3_url: str) -> AsyncIterator[Wire]:
    async with Wire(int(s3_url.rpartition(":")[2])) as wire:
        yield wire


@pytest.fixture
async def client(tmp_path: Path, s3_url: str, wire: Wire) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of a gateway whose bucket is at the end of the wire."""
    async with contextlib.AsyncExitStack() as stack:
        bucket = new_bucket(s3_url, via=f"http://127.0.0.1:{wire.port}")
        cluster = await stack.enter_async_context(running_cluster(tmp_path))
        url = await cluster.gateway(storage=storage_of_bucket(bucket, SystemClock()))
        limits = httpx.Limits(max_connections=200)
        yield await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=120, limits=limits))


async def upload(client: httpx.AsyncClient, content: bytes) -> httpx.Response:
    return await client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", content)})


def calls(client: httpx.AsyncClient, file: str, batch: str) -> dict[str, "asyncio.Task[httpx.Response]"]:
    """Begin a call of each route that needs the bucket."""
    asked = {
        "upload": upload(client, b"x\n"),
        "large upload": upload(client, bytes(20 * MIB)),
        "files": client.get("/v1/files"),
        "file": client.get(f"/v1/files/{file}"),
        "content": client.get(f"/v1/files/{file}/content"),
        "delete": client.delete(f"/v1/files/{file}"),
        "create": client.post("/v1/batches", json=BATCH | {"input_file_id": file}),
        "batches": client.get("/v1/batches"),
        "batch": client.get(f"/v1/batches/{batch}"),
        "cancel": client.post(f"/v1/batches/{batch}/cancel"),
    }
    return {name: asyncio.create_task(call) for name, call in asked.items()}


async def late(all_calls: dict[str, "asyncio.Task[httpx.Response]"], limit_s: float) -> list[str]:
    """Return the names of the calls that are not answered in time."""
    await asyncio.wait(all_calls.values(), timeout=limit_s)
    found = [name for name, task in all_calls.items() if not task.done()]
    for task in all_calls.values():
        if not task.done():
            task.cancel()
    return found


async def test_each_route_answers_in_time_while_the_bucket_is_silent(
    client: httpx.AsyncClient, wire: Wire
) -> None:
    file = (await upload(client, b"x\n")).json()["id"]
    batch = (await client.post("/v1/batches", json=BATCH | {"input_file_id": file})).json()["id"]
    wire.clog()
    rounds = [calls(client, file, batch) for _ in range(5)]  # more than there are threads
    asked = {f"{name} {n}": task for n, each in enumerate(rounds) for name, task in each.items()}
    assert await late(asked, LIMIT_S + BUSY_S) == []
    for name, task in asked.items():
        answer = task.result()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage_unavailable"), name
        assert answer.headers["retry-after"] == "1", name
    again = calls(client, file, batch)
    assert await late(again, LIMIT_S + BUSY_S) == []
    wire.unclog()

    async def back() -> bool:
        return (await client.get(f"/v1/batches/{batch}")).is_success

    await until(back)
    assert (await client.get(f"/v1/files/{file}/content")).content == b"x\n"
