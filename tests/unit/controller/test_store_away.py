"""A store that is away for longer than heartbeats live: what runs stays where it is."""

import time
from pathlib import Path

import pytest

from qlm.controller.shell import reconciler
from qlm.domain.errors import StoreUnavailableError
from qlm.domain.fleet import InstanceStatus
from qlm.domain.ids import ControllerId, SessionId
from qlm.domain.leadership import Leadership
from qlm.domain.lease import InstanceHeld
from qlm.domain.view import ClusterView
from qlm.store.embedded.memory import MemoryStore
from support.flaky import until
from support.plant import M, plant
from support.requests import a_request


class LaterClock:
    """The time, some seconds later."""

    later_s = 0.0

    def now_ns(self) -> int:
        return time.time_ns() + round(self.later_s * 1e9)


class AwayStore(MemoryStore):
    """A store that can be away for the agents and for who wants to lead; it counts looks and refusals."""

    away_for_agents = away_for_leaders = False
    looks = refused = 0

    async def heartbeat(
        self, status: InstanceStatus, ttl_s: float, replaces: SessionId | None = None
    ) -> InstanceHeld | None:
        if self.away_for_agents:
            raise StoreUnavailableError("it cannot be written")
        return await super().heartbeat(status, ttl_s, replaces)

    async def acquire_leadership(self, name: ControllerId, ttl_s: float) -> Leadership:
        if self.away_for_leaders:
            self.refused += 1
            raise StoreUnavailableError("it cannot be written")
        return await super().acquire_leadership(name, ttl_s)

    async def view(self) -> ClusterView:
        self.looks += 1
        return await super().view()


async def test_leases_outlast_it_though_the_controller_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler, "PERIOD_NS", 0)  # as if it were away for another period
    clock = LaterClock()
    store = AwayStore(clock)
    async with plant(tmp_path, store=store) as it:
        await until(store.indexed)  # else it counts as emptied, which has the same grace
        it.engines[M].tokens_max = 4
        await it.accept(*(a_request(f"r{n}") for n in range(4)))
        await until(lambda: it.engines[M].made == 4)
        store.away_for_agents = store.away_for_leaders = True
        clock.later_s = 10.0  # heartbeats and the leadership have lapsed
        await until(lambda: store.refused >= 4)
        looks, store.away_for_leaders = store.looks, False
        await until(lambda: store.looks >= looks + 4)
        store.away_for_agents = False

        async def alive() -> bool:
            return bool((await store.view()).instances)

        await until(alive)
        it.engines[M].tokens_max = 1_000_000
        await it.all_end_exactly_once()
        for request in it.requests:
            record = await store.record(request.id)
            assert record is not None
            assert "returned" not in [event.what for event in record.events]
