"""Batches in S3-compatible storage: over HTTP, over an outage of it, and over the death of a gateway."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import orjson
import pytest
from openai import AsyncOpenAI, InternalServerError, NotFoundError
from openai.types import Batch

from qlm.domain.request import Request
from qlm.gateway.batches import runner
from qlm.gateway.files.limits import FileLimits
from qlm.gateway.files.s3.bucket import Bucket
from qlm.gateway.files.s3.storage import PACE, storage_of_bucket
from qlm.gateway.files.storage import Storage
from support.gateway import Cluster, SystemClock, running_cluster, text_then_end, until
from support.s3 import bucket_again, new_bucket
from support.wire import Wire

CHAT: Final = "/v1/chat/completions"
ENDED: Final = {"completed", "failed", "expired", "cancelled"}
LINES: Final = 30
TTL_S: Final = 3.0
FAST: Final = replace(PACE, scan_s=0.2, look_s=0.2, note_s=0.2)


@dataclass(slots=True)
class World:
    """A gateway whose files are in a bucket that it reaches over a wire, and a client of it."""

    cluster: Cluster
    client: AsyncOpenAI
    wire: Wire
    bucket: Bucket

    async def batch(self, client: AsyncOpenAI | None = None) -> Batch:
        client = client or self.client
        content = b"".join(orjson.dumps(line(n)) + b"\n" for n in range(LINES))
        file = await client.files.create(file=("in.jsonl", content), purpose="batch")
        return await client.batches.create(
            input_file_id=file.id,
            endpoint=CHAT,
            completion_window="24h",
        )

    async def ended(self, id: str) -> Batch:
        async def over() -> bool:
            return (await self.client.batches.retrieve(id)).status in ENDED

        await until(over, timeout_s=120)
        return await self.client.batches.retrieve(id)

    async def lines_of(self, file_id: str | None) -> list[dict[str, Any]]:
        assert file_id is not None
        content = (await self.client.files.content(file_id)).content
        return [orjson.loads(each) for each in content.splitlines()]


def line(n: int) -> dict[str, Any]:
    body = {"model": "emulated", "messages": [{"role": "user", "content": f"Line {n}"}]}
    return {"custom_id": f"line-{n}", "method": "POST", "url": CHAT, "body": body}


def storage_in(bucket: Bucket) -> Storage:
    limits = FileLimits(lines_in_work_max=8)
    return storage_of_bucket(bucket, SystemClock(), limits, claim_ttl_s=TTL_S, pace=FAST)


def answered_first(count: int) -> Callable[[Request], Sequence[int]]:
    """Let the requests that come first end, while the others wait for `go`."""
    seen: list[Request] = []

    def answer(request: Request) -> Sequence[int]:
        seen.append(request)
        return text_then_end("Hi" if len(seen) <= count else "Hello, world!")

    return answer


@pytest.fixture
async def world(tmp_path: Path, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(runner, "RETRY_S", 0.2)
    async with contextlib.AsyncExitStack() as stack:
        wire = await stack.enter_async_context(Wire(int(s3_url.rpartition(":")[2])))
        bucket = new_bucket(s3_url, via=f"http://127.0.0.1:{wire.port}", timeout_s=5.0)
        cluster = await stack.enter_async_context(running_cluster(tmp_path))
        url = await cluster.gateway(storage=storage_in(bucket))
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0)
        await stack.enter_async_context(client)
        yield World(cluster, client, wire, bucket)


async def half_done(world: World) -> Batch:
    """Begin a batch, and wait until some of its lines have answers while the others wait."""
    world.cluster.agent.answer = answered_first(10)
    world.cluster.agent.pause_at = 4
    made = await world.batch()

    async def some() -> bool:
        counts = (await world.client.batches.retrieve(made.id)).request_counts
        return counts is not None and counts.completed == 10

    await until(some)
    return made


async def answered_once(world: World, batch: Batch) -> None:
    """See that each line is in the output once, and was generated once."""
    assert batch.status == "completed" and batch.error_file_id is None
    output = await world.lines_of(batch.output_file_id)
    assert Counter(each["custom_id"] for each in output) == Counter(f"line-{n}" for n in range(LINES))
    assert all(each["response"]["status_code"] == 200 for each in output)
    assert len(world.cluster.agent.leased) == LINES
    assert len({request.id for request in world.cluster.agent.leased}) == LINES


async def test_a_batch_in_a_bucket_answers_each_line_once(world: World) -> None:
    batch = await world.ended((await world.batch()).id)
    await answered_once(world, batch)
    assert [each.id async for each in await world.client.batches.list()] == [batch.id]

    async def closed() -> bool:
        keys = await asyncio.to_thread(world.bucket.keys, "")
        left = sorted(key.split("/")[-1] for key in keys if batch.id in key)
        return left == ["batch.json", "claim.json", "end.json"]

    await until(closed)


async def test_another_tenant_sees_nothing_of_it(world: World) -> None:
    batch = await world.ended((await world.batch()).id)
    headers = {"x-llm-d-inference-fairness-id": "other"}
    other = world.client.with_options(default_headers=headers)
    assert [each.id async for each in await other.files.list()] == []
    assert [each.id async for each in await other.batches.list()] == []
    assert batch.output_file_id is not None
    for call, id in (
        (other.batches.retrieve, batch.id),
        (other.batches.cancel, batch.id),
        (other.files.content, batch.output_file_id),
        (other.files.delete, batch.input_file_id),
    ):
        with pytest.raises(NotFoundError):
            await call(id)


async def test_a_batch_goes_on_after_an_outage_and_answers_each_line_once(world: World) -> None:
    made = await half_done(world)
    await world.wire.cut()
    with pytest.raises(InternalServerError) as caught:
        await world.client.batches.retrieve(made.id)
    assert (caught.value.status_code, caught.value.code) == (503, "storage_unavailable")
    world.cluster.agent.go.set()  # the lines in work get their answers while the bucket is away
    assert [model.id async for model in await world.client.models.list()]
    await world.wire.mend()
    await answered_once(world, await world.ended(made.id))


async def test_a_batch_goes_on_after_a_crash_once_its_claim_has_run_out(world: World, s3_url: str) -> None:
    made = await half_done(world)
    # The gateway that runs it cannot give its claim back, as after a kill -9.
    await world.wire.cut()
    second = bucket_again(s3_url, world.bucket)
    url = await world.cluster.gateway(storage=storage_in(second))
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as client:
        world.client = client
        claim = next(key for key in second.keys("") if key.endswith("claim.json"))

        def taken() -> bool:
            found = second.get_json(claim)
            return bool(found["number"] == 2)

        await until(taken)
        world.cluster.agent.go.set()
        await answered_once(world, await world.ended(made.id))
