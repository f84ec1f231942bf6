"""A store that is not reached for longer than heartbeats live: what runs stays where it is."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from qlm.controller.shell import reconciler
from qlm.domain.errors import StoreUnavailableError
from qlm.domain.fleet import InstanceStatus
from qlm.domain.ids import RequestId, SessionId
from qlm.domain.lease import InstanceHeld
from qlm.domain.view import ClusterView
from qlm.store.embedded.memory import MemoryStore
from support.flaky import until
from support.plant import HOLDER, M, Plant, plant
from support.requests import a_request


class LaterClock:
    """The time, some seconds later."""

    later_s = 0.0

    def now_ns(self) -> int:
        return time.time_ns() + round(self.later_s * 1e9)


class AwayStore(MemoryStore):
    """A store that can be away for an agent and for its controller; it counts looks and refusals."""

    away_for_agent = away_for_controller = False
    looks = refused = 0

    async def heartbeat(
        self, status: InstanceStatus, ttl_s: float, replaces: SessionId | None = None
    ) -> InstanceHeld | None:
        if self.away_for_agent:
            raise StoreUnavailableError("it cannot be written")
        return await super().heartbeat(status, ttl_s, replaces)

    async def expire(self, now_ns: int, limit: int = 1000) -> Sequence[RequestId]:
        if self.away_for_controller:
            self.refused += 1
            raise StoreUnavailableError("it cannot be written")
        return await super().expire(now_ns, limit)

    async def view(self) -> ClusterView:
        self.looks += 1
        return await super().view()


@pytest.fixture(autouse=True)
def no_period(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every turn look for dead instances, as the first one after a longer time would."""
    monkeypatch.setattr(reconciler, "PERIOD_NS", 0)


@asynccontextmanager
async def none_returned(folder: Path, clock: LaterClock) -> AsyncIterator[tuple[Plant, AwayStore]]:
    """Let requests run; at the end the controller looks several times before the agent is heard of."""
    store = AwayStore(clock)
    async with plant(folder, store=store) as it:
        await until(store.indexed)  # else it counts as emptied, which has the same grace
        it.engines[M].tokens_max = 4
        await it.accept(*(a_request(f"r{n}") for n in range(4)))
        await until(lambda: it.engines[M].made == 4)
        store.away_for_agent = True
        yield it, store
        looks = store.looks
        await until(lambda: store.looks >= looks + 4)
        store.away_for_agent = False
        await until(partial(_alive, store))
        it.engines[M].tokens_max = 1_000_000
        await it.all_end_exactly_once()
        for request in it.requests:
            record = await store.record(request.id)
            assert record is not None
            assert "returned" not in [event.what for event in record.events]


async def _alive(store: MemoryStore) -> bool:
    return bool((await store.view()).instances)


async def test_leases_outlast_an_outage_longer_than_heartbeats_live(tmp_path: Path) -> None:
    async with none_returned(tmp_path, LaterClock()) as (_, store):
        store.away_for_controller = True
        await until(lambda: store.refused)
        await store.leave(HOLDER)  # its heartbeat lapses
        store.away_for_controller = False


async def test_leases_outlast_a_sleep_of_the_machine_longer_than_heartbeats_live(tmp_path: Path) -> None:
    clock = LaterClock()
    async with none_returned(tmp_path, clock):
        clock.later_s = 10.0
