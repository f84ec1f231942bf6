"""Gateways that run batches on one cluster, whose queue may be away."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from qlm.domain.fleet import ModelSpec
from qlm.gateway.batches import batch_run, line_run
from qlm.gateway.batches.line_routes import LineRoutes
from qlm.gateway.batches.line_slots import LineSlots
from qlm.gateway.batches.runner import batches_running
from qlm.gateway.files.disk.storage import storage_in
from qlm.gateway.files.records import Batch
from qlm.gateway.files.storage import Storage
from qlm.gateway.http.files.line_routes import LINE_ROUTES
from qlm.gateway.sessions.gateway import Gateway, create_gateway
from support.flaky import Faults, flaky
from support.gateway import MODELS, Cluster, SystemClock, running_cluster, until
from support.stored_batches import add_batch

ENDPOINT: Final = "/v1/completions"
BODY: Final = {"model": "emulated", "prompt": "Hi", "max_tokens": 2}
NAMES: Final = ["0", "1", "2"]
CONTENT: Final = b"".join(
    orjson.dumps({"custom_id": n, "method": "POST", "url": ENDPOINT, "body": BODY}) + b"\n" for n in NAMES
)


class World:
    """Gateways with files on one cluster, whose queue may be away."""

    def __init__(self, cluster: Cluster, storage: Storage) -> None:
        self.cluster = cluster
        self.storage = storage
        self.faults = Faults()
        self.id = ""
        self.slots = LineSlots(asyncio.Semaphore(0))  # those of the batch that ran last

    @contextlib.asynccontextmanager
    async def gateway(
        self, routes: LineRoutes = LINE_ROUTES, models: Sequence[ModelSpec] = MODELS
    ) -> AsyncIterator[Gateway]:
        gateway = create_gateway(
            self.cluster.parts(
                uuid.uuid4().hex,
                models=models,
                broker=flaky(self.cluster.broker, self.faults),
                storage=self.storage,
            )
        )
        async with gateway.running(), batches_running(gateway, routes):
            yield gateway

    def add(self, tenant: str = "a") -> str:
        self.id = add_batch(self.storage, CONTENT, endpoint=ENDPOINT, tenant=tenant)[0].id
        return self.id

    async def has_queued(self, count: int) -> bool:
        broker = self.cluster.broker
        return sum([await broker.depth(queue) for queue in await broker.queues()]) == count

    async def ended(self) -> Batch:
        await until(lambda: self._batch().ended)
        return self._batch()

    def lines(self, id: str | None) -> list[dict[str, Any]]:
        if id is None:
            return []
        with self.storage.files.open("a", id) as file:
            return [orjson.loads(each) for each in file]

    def _batch(self) -> Batch:
        batch = self.storage.batches.find(self.id)
        assert batch is not None
        return batch


@contextlib.asynccontextmanager
async def running_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """Run a cluster whose batches are looked at often, and whose lines are tried again soon."""
    monkeypatch.setattr(line_run, "PAUSE_MAX_S", 0.01)
    storage = storage_in(tmp_path / "files", SystemClock())
    fast = replace(storage, pace=replace(storage.pace, scan_s=0.02, look_s=0.02, rest_s=0.02))
    async with running_cluster(tmp_path) as cluster:
        world = World(cluster, fast)

        def slots(of_gateway: asyncio.Semaphore) -> LineSlots:
            world.slots = LineSlots(of_gateway)
            return world.slots

        monkeypatch.setattr(batch_run, "LineSlots", slots)
        yield world


def names(lines: list[dict[str, Any]]) -> list[str]:
    return sorted(each["custom_id"] for each in lines)
