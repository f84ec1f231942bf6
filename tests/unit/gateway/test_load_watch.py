"""When a gateway may not tell a client that a request is unknown, and how often it looks at the cluster."""

import asyncio
from typing import cast

from qlm.domain.shell.faults import FaultLog
from qlm.domain.shell.tasks import end_tasks
from qlm.domain.view import ClusterView
from qlm.gateway.sessions.hub import Hub
from qlm.gateway.sessions.load.load_watch import REBUILD_NS, UNWATCHED_MAX_NS, LoadWatch
from qlm.store.core.state import State
from qlm.store.embedded.memory import MemoryStore
from support.gateway import mark_indexed, until

BEGAN_NS = 1_700_000_000_000_000_000


class SetClock:
    """Clock that stands at a time until it is set."""

    def __init__(self, time_ns: int) -> None:
        self.time_ns = time_ns

    def now_ns(self) -> int:
        return self.time_ns


async def watch_of(clock: SetClock, interval_s: float = 1.0) -> LoadWatch:
    """Return the watch of a gateway that starts now, beside a whole store that was made at `BEGAN_NS`."""
    store = MemoryStore(clock, state=State(BEGAN_NS))
    await mark_indexed(store)
    return LoadWatch(store=store, clock=clock, hub=cast(Hub, None), faults=FaultLog(), interval_s=interval_s)


async def test_a_gateway_beside_a_new_store_knows_what_is_unknown() -> None:
    clock = SetClock(BEGAN_NS)
    load = await watch_of(clock)
    assert not await load.rebuilding()
    clock.time_ns += UNWATCHED_MAX_NS
    assert not await load.rebuilding()


async def test_a_gateway_that_was_just_started_does_not_know_what_others_could_not_index() -> None:
    clock = SetClock(BEGAN_NS + UNWATCHED_MAX_NS + 1)
    load = await watch_of(clock)
    assert await load.rebuilding()


async def test_a_gateway_that_stood_still_does_not_know_it_for_a_while() -> None:
    clock = SetClock(BEGAN_NS)
    load = await watch_of(clock)
    assert not await load.rebuilding()
    clock.time_ns += UNWATCHED_MAX_NS + 1
    until_ns = clock.time_ns + REBUILD_NS
    while clock.time_ns < until_ns:
        assert await load.rebuilding()
        clock.time_ns += UNWATCHED_MAX_NS
    assert not await load.rebuilding()


async def test_a_gateway_that_looks_seldom_has_missed_nothing_between_two_looks() -> None:
    clock = SetClock(BEGAN_NS)
    load = await watch_of(clock, interval_s=10.0)
    for _ in range(9):
        assert not await load.rebuilding()
        clock.time_ns += 10 * 10**9


class CountedStore(MemoryStore):
    """Store that counts the looks at it."""

    looks = 0

    async def view(self) -> ClusterView:
        self.looks += 1
        return await super().view()


async def test_all_that_wait_for_a_look_share_the_next_one() -> None:
    clock = SetClock(BEGAN_NS)
    store = CountedStore(clock, state=State(BEGAN_NS))
    load = LoadWatch(store=store, clock=clock, hub=cast(Hub, None), faults=FaultLog(), interval_s=3600)
    watching = asyncio.create_task(load.run())
    try:
        await until(lambda: store.looks)
        await asyncio.gather(*(load.look_again() for _ in range(50)))
        assert store.looks == 2
    finally:
        await end_tasks([watching])
