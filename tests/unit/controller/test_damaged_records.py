"""A record that cannot be read costs its request at most: all others are indexed, and plans go on."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import pytest

from qlm.broker.topology import hold_queue
from qlm.domain.errors import StoreDataError
from qlm.domain.ids import ControllerId, GatewayId, RequestId
from qlm.domain.request import RequestMetadata, RequestRecord, RequestState
from qlm.domain.view import Enqueued
from qlm.store.embedded.memory import MemoryStore
from support.reconciling import GPU_0, GPU_1, ReconcilerBench, reconciler_bench
from support.requests import a_request

T = TypeVar("T")


class Damaged(MemoryStore):
    """A store in which the record of the request `damaged` cannot be read, as garbage in Redis would be."""

    async def enqueue(
        self, metadata: RequestMetadata, watcher: GatewayId | None = None, incarnation: int | None = None
    ) -> Enqueued:
        enqueued = await super().enqueue(metadata, watcher, incarnation)
        return self._readable(metadata.id, enqueued)

    async def record(self, id: RequestId) -> RequestRecord | None:
        return self._readable(id, await super().record(id))

    def _readable(self, id: RequestId, found: T) -> T:
        if id == "damaged":
            raise StoreDataError("a value in Redis cannot be read")
        return found


@pytest.fixture
async def damaged(tmp_path: Path) -> AsyncIterator[ReconcilerBench]:
    async with reconciler_bench(tmp_path) as bench:
        bench.store = Damaged(bench.clock)
        bench.reconciler = bench.new_reconciler()
        yield bench


async def test_a_damaged_record_keeps_no_other_request_from_being_indexed(
    damaged: ReconcilerBench, caplog: pytest.LogCaptureFixture
) -> None:
    """It kept the controller from planning anything."""
    requests = [a_request(id) for id in ("r1", "damaged", "r2")]
    for request in requests:
        await damaged.publish(request)
    term = (await damaged.store.acquire_leadership(ControllerId("c"), 1000.0)).term
    await damaged.reconciler.run(await damaged.store.view(), term)
    assert await damaged.depth(requests[0].cls.queue) == 3, "an agent can serve the damaged one, too"
    assert [await damaged.state(requests[n]) for n in (0, 2)] == [RequestState.QUEUED] * 2
    assert "damaged" in caplog.text


async def test_a_damaged_record_keeps_no_message_from_leaving_the_hold_queue_of_a_dead_instance(
    damaged: ReconcilerBench,
) -> None:
    requests = [a_request(id) for id in ("r1", "damaged", "r2")]
    for request in requests:
        await damaged.publish(request, hold_queue(GPU_0.instance))
    assert await damaged.look(GPU_1)
    assert await damaged.depth(hold_queue(GPU_0.instance)) == 0
    assert await damaged.depth(requests[0].cls.queue) == 3
