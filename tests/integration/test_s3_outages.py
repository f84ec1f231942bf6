"""A bucket that goes away or hangs while clients use it: what they get, how soon, and what the log says."""

import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from qlm.gateway.files.s3.bucket import Bucket
from qlm.gateway.files.s3.storage import storage_of_bucket
from support.gateway import SystemClock, running_cluster
from support.s3 import new_bucket, with_uploads_of_now
from support.wire import Wire

MIB = 1024 * 1024


@dataclass(slots=True)
class World:
    """A gateway whose files are in a bucket that it reaches over a wire, and a client of it."""

    client: httpx.AsyncClient
    wire: Wire
    bucket: Bucket

    async def upload(self, content: bytes) -> str:
        answer = await self.try_upload(content)
        assert answer.is_success, answer.text
        return str(answer.json()["id"])

    async def try_upload(self, content: bytes) -> httpx.Response:
        files = {"file": ("in.jsonl", content)}
        return await self.client.post("/v1/files", data={"purpose": "batch"}, files=files)


@contextlib.asynccontextmanager
async def world_at(folder: Path, s3_url: str) -> AsyncIterator[World]:
    async with contextlib.AsyncExitStack() as stack:
        wire = await stack.enter_async_context(Wire(int(s3_url.rpartition(":")[2])))
        bucket = with_uploads_of_now(new_bucket(s3_url, via=f"http://127.0.0.1:{wire.port}", timeout_s=60.0))
        cluster = await stack.enter_async_context(running_cluster(folder))
        url = await cluster.gateway(storage=storage_of_bucket(bucket, SystemClock()))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=120))
        yield World(client, wire, bucket)


async def test_a_download_is_cut_off_when_the_bucket_goes_away(
    tmp_path: Path, s3_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with world_at(tmp_path, s3_url) as world:
        content = bytes(24 * MIB)
        id = await world.upload(content)
        received = 0
        async with world.client.stream("GET", f"/v1/files/{id}/content") as answer:
            assert answer.headers["content-length"] == str(len(content))
            parts = answer.aiter_bytes()
            received += len(await anext(parts))
            await world.wire.cut()
            with pytest.raises(httpx.RemoteProtocolError, match="without sending complete"):
                async for part in parts:
                    received += len(part)
        assert received < len(content)
        said = [each for each in caplog.records if each.levelno >= logging.WARNING]
        assert [each.exc_info for each in said] == [None], [each.getMessage() for each in said]
        assert "the storage of files is away: the S3 bucket" in said[0].getMessage()
        await world.wire.mend()
        assert (await world.client.get(f"/v1/files/{id}/content")).content == content


async def test_a_download_of_a_file_that_is_deleted_meanwhile_is_cut_off(
    tmp_path: Path, s3_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with world_at(tmp_path, s3_url) as world:
        content = bytes(24 * MIB)
        id = await world.upload(content)
        async with world.client.stream("GET", f"/v1/files/{id}/content") as answer:
            parts = answer.aiter_bytes()
            await anext(parts)
            assert (await world.client.delete(f"/v1/files/{id}")).is_success
            with pytest.raises(httpx.RemoteProtocolError, match="without sending complete"):
                async for _ in parts:
                    pass
        assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


async def test_the_head_of_a_download_reads_no_content(tmp_path: Path, s3_url: str) -> None:
    async with world_at(tmp_path, s3_url) as world:
        id = await world.upload(bytes(4 * MIB))
        reads: list[str] = []

        def note(request: Any, **_: Any) -> None:
            if request.method == "GET" and "/files/" in request.url and not request.url.endswith(".json"):
                reads.append(request.url)

        world.bucket._client.meta.events.register("before-send.s3", note)
        answer = await world.client.head(f"/v1/files/{id}/content")
        assert (answer.status_code, answer.headers["content-length"]) == (200, str(4 * MIB))
        assert reads == []
        assert len((await world.client.get(f"/v1/files/{id}/content")).content) == 4 * MIB
        assert len(reads) == 4
