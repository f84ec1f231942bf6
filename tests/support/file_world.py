"""A gateway with files and batches, and a client of OpenAI's SDK."""

import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import orjson
from openai import AsyncOpenAI
from openai.types import Batch

from qlm.gateway.core.limits import GatewayLimits
from qlm.gateway.files.disk.storage import storage_in
from qlm.gateway.files.limits import FileLimits
from qlm.gateway.files.storage import Storage
from support.gateway import Cluster, SystemClock, running_cluster, until
from support.stored_batches import folder_of

CHAT: Final = "/v1/chat/completions"
ENDED: Final = {"completed", "failed", "expired", "cancelled"}
LIMITS: Final = FileLimits(
    lines_in_work_max=8, file_bytes_max=64 * 1024, tenant_bytes_max=128 * 1024, open_batches_max=20
)

PROMPT_TOKENS_MAX: Final = 3800
"""Prompt tokens that may wait in a queue."""


class SetClock:
    """A clock that tests put forward."""

    def __init__(self) -> None:
        self.extra_s = 0.0

    def now_ns(self) -> int:
        return SystemClock().now_ns() + round(self.extra_s * 1e9)


@dataclass(slots=True)
class World:
    """A gateway with files, and a client of it."""

    cluster: Cluster
    client: AsyncOpenAI
    http: httpx.AsyncClient
    storage: Storage
    clock: SetClock

    @property
    def root(self) -> Path:
        return folder_of(self.storage, "")

    async def upload(self, lines: Iterable[Any]) -> str:
        content = b"".join(each if isinstance(each, bytes) else orjson.dumps(each) + b"\n" for each in lines)
        return (await self.client.files.create(file=("in.jsonl", content), purpose="batch")).id

    async def batch(self, lines: Iterable[Any], window: str = "24h", **more: Any) -> Batch:
        given: dict[str, Any] = {"endpoint": CHAT, "completion_window": window, **more}
        return await self.client.batches.create(input_file_id=await self.upload(lines), **given)

    async def ended(self, id: str) -> Batch:
        async def over() -> bool:
            return (await self.client.batches.retrieve(id)).status in ENDED

        await until(over, timeout_s=120)
        return await self.client.batches.retrieve(id)

    async def lines_of(self, file_id: str | None) -> list[dict[str, Any]]:
        if file_id is None:
            return []
        content = await self.client.files.content(file_id)
        return [orjson.loads(line) for line in content.content.splitlines()]


@contextlib.asynccontextmanager
async def running_world(folder: Path) -> AsyncIterator[World]:
    async with running_cluster(folder) as cluster, contextlib.AsyncExitStack() as stack:
        clock = SetClock()
        storage = storage_in(folder / "files", clock, LIMITS)
        limits = GatewayLimits(queue_prompt_tokens_max=PROMPT_TOKENS_MAX)
        url = await cluster.gateway(storage=storage, clock=clock, limits=limits)
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0)
        await stack.enter_async_context(client)
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=20))
        yield World(cluster, client, http, storage, clock)
