"""Batches paused and resumed by their client, and operated from the command line."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import openai
import orjson
import pytest
from click.testing import CliRunner, Result

from qlm.cli.main import main
from qlm.gateway.files.disk.storage import storage_in
from qlm.gateway.files.storage import Storage
from support.gateway import Cluster, SystemClock, running_cluster, until
from support.stored_batches import add_batch

ENDPOINT: Final = "/v1/completions"
BODY: Final = {"model": "emulated", "prompt": "Hi", "max_tokens": 2}
CONTENT: Final = b"".join(
    orjson.dumps({"custom_id": f"line-{n}", "method": "POST", "url": ENDPOINT, "body": BODY}) + b"\n"
    for n in range(3)
)


def paused_batch(storage: Storage, tenant: str = "default") -> str:
    """Add a batch that is paused before any gateway can see it; return its id."""
    spec, _ = add_batch(storage, CONTENT, endpoint=ENDPOINT, tenant=tenant)
    storage.batches.pause(tenant, spec.id)
    return spec.id


@dataclass(frozen=True, slots=True)
class World:
    """A gateway that found a paused batch when it started."""

    cluster: Cluster
    client: openai.AsyncOpenAI
    storage: Storage
    paused: str
    admin_url: str

    async def ended(self, id: str) -> Any:
        async def over() -> bool:
            return (await self.client.batches.retrieve(id)).status in ("completed", "cancelled")

        await until(over, timeout_s=60)
        return await self.client.batches.retrieve(id)

    async def qlm(self, *arguments: str) -> Result:
        return await asyncio.to_thread(
            CliRunner().invoke, main, ["batches", *arguments, "--url", self.admin_url]
        )


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    storage = storage_in(tmp_path / "files", SystemClock())
    paused = paused_batch(storage)
    async with running_cluster(tmp_path) as cluster, contextlib.AsyncExitStack() as stack:
        url = await cluster.gateway(storage=storage)
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=20)
        await stack.enter_async_context(client)
        yield World(cluster, client, storage, paused, cluster.admin_urls[url])


async def test_a_paused_batch_waits_and_goes_on(world: World) -> None:
    file = await world.client.files.create(file=("in.jsonl", CONTENT), purpose="batch")
    other = await world.client.batches.create(
        input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h"
    )
    assert (await world.ended(other.id)).status == "completed"
    waiting = await world.client.batches.retrieve(world.paused)
    assert waiting.status in ("validating", "in_progress")
    assert waiting.request_counts is not None and waiting.request_counts.completed == 0
    assert waiting.model_dump()["paused_at"] is not None
    assert len(world.cluster.agent.leased) == 3
    resumed: Any = await world.client.post(f"/batches/{world.paused}/resume", cast_to=object)
    assert resumed["paused_at"] is None
    counts = (await world.ended(world.paused)).request_counts
    assert (counts.total, counts.completed) == (3, 3)
    for what in ("pause", "resume"):
        with pytest.raises(openai.APIStatusError) as caught:
            await world.client.with_options(max_retries=0).post(
                f"/batches/{world.paused}/{what}", cast_to=object
            )
        assert (caught.value.status_code, caught.value.code) == (409, "batch_ended")


async def test_a_paused_batch_can_be_cancelled(world: World) -> None:
    await world.client.batches.cancel(world.paused)
    ended = await world.ended(world.paused)
    assert (ended.status, ended.request_counts.failed) == ("cancelled", 3)
    assert world.cluster.agent.leased == []


async def test_batches_are_operated_from_the_command_line(world: World) -> None:
    theirs = paused_batch(world.storage, "team b")
    listed = json.loads((await world.qlm("list", "--json")).stdout)["batches"]
    assert {each["id"]: each["tenant"] for each in listed} == {world.paused: "default", theirs: "team b"}
    some = (await world.qlm("list", "--tenant", "team b")).stdout
    assert theirs in some and "paused" in some and world.paused not in some
    shown = await world.qlm("show", world.paused)
    assert "paused" in shown.stdout and "1h, ends in" in shown.stdout
    assert (await world.qlm("resume", theirs)).stdout == f"{theirs} goes on\n"

    async def done() -> bool:
        batch = await asyncio.to_thread(world.storage.batches.get, "team b", theirs)
        return batch is not None and batch.ended

    await until(done, timeout_s=60)
    plain = json.loads((await world.qlm("show", theirs, "--json")).stdout)
    assert (plain["status"], plain["request_counts"]["completed"]) == ("completed", 3)
    late = await world.qlm("pause", theirs)
    assert late.exit_code == 1 and "expected one that has not ended" in late.output
    assert (await world.qlm("cancel", world.paused)).stdout == f"{world.paused} is being cancelled\n"
    assert (await world.ended(world.paused)).status == "cancelled"
    unknown = await world.qlm("show", "batch_none")
    assert unknown.exit_code == 1 and "batch batch_none not found" in unknown.output
