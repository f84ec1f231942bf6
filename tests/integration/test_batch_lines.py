"""Lines of batches between their file and the queue: outages, pauses and ends that come in between."""

import contextlib
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from qlm.domain.errors import BrokerUnavailableError
from qlm.domain.ids import GatewayId, RequestId
from qlm.gateway.api.errors import ApiError, unavailable
from qlm.gateway.batches import line_run
from qlm.gateway.batches.line_routes import LineRoutes
from qlm.gateway.batches.line_run import PAUSE_MAX_S, pause_s
from qlm.gateway.batches.runner import batches_running
from qlm.gateway.files.disk.storage import storage_in
from qlm.gateway.files.records import Batch
from qlm.gateway.files.storage import Storage
from qlm.gateway.http.files.line_routes import LINE_ROUTES
from qlm.gateway.sessions.gateway import Gateway, create_gateway
from qlm.gateway.sessions.idempotency import ATTEMPTS_MAX
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

    @contextlib.asynccontextmanager
    async def gateway(self, routes: LineRoutes = LINE_ROUTES) -> AsyncIterator[Gateway]:
        gateway = create_gateway(
            MODELS,
            flaky(self.cluster.broker, self.faults),
            self.cluster.store,
            SystemClock(),
            self.cluster.limits,
            GatewayId(uuid.uuid4().hex),
            lambda: RequestId(uuid.uuid4().hex),
            storage=self.storage,
        )
        async with gateway.running(), batches_running(gateway, routes):
            yield gateway

    def add(self) -> None:
        self.id = add_batch(self.storage, CONTENT, endpoint=ENDPOINT)[0].id

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


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(line_run, "PAUSE_MAX_S", 0.01)
    storage = storage_in(tmp_path / "files", SystemClock())
    fast = replace(storage, pace=replace(storage.pace, scan_s=0.02, look_s=0.02))
    async with running_cluster(tmp_path) as cluster:
        yield World(cluster, fast)


def names(lines: list[dict[str, Any]]) -> list[str]:
    return sorted(each["custom_id"] for each in lines)


async def test_lines_outlast_an_outage_of_the_queue_however_long(world: World) -> None:
    world.faults.fail(BrokerUnavailableError("connection refused"), "publish")
    world.add()
    async with world.gateway():
        await until(lambda: world.faults.raised["publish"] > 2 * len(NAMES) * ATTEMPTS_MAX)
        world.faults.heal()
        batch = await world.ended()
    assert (batch.status, batch.state.completed, batch.state.failed) == ("completed", 3, 0)


async def test_another_gateway_finds_the_request_that_a_line_has_after_an_outage(world: World) -> None:
    world.faults.fail(BrokerUnavailableError("connection refused"), "publish")
    world.add()
    await world.cluster.agent.rest()
    async with world.gateway():
        await until(lambda: world.faults.raised["publish"] > 2 * len(NAMES) * ATTEMPTS_MAX)
        world.faults.heal()
        await until(lambda: world.has_queued(3))
    async with world.gateway():
        world.cluster.agent.working.set()
        batch = await world.ended()
    assert names(world.lines(batch.state.output_file_id)) == NAMES
    assert sorted(Counter(each.id for each in world.cluster.agent.leased).values()) == [1, 1, 1]


def test_pauses_double_while_a_part_is_away() -> None:
    away, full = unavailable("away", "broker_unavailable"), ApiError(status=429, message="full")
    assert [pause_s(away, n) for n in range(1, 8)] == [1, 2, 4, 8, 16, PAUSE_MAX_S, PAUSE_MAX_S]
    assert pause_s(away, 10_000) == PAUSE_MAX_S
    assert pause_s(full, 0) == 1
