"""Keys in Redis that another program wrote over: each costs its request at most, and operators are told."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import NamedTuple, cast

import pytest
import redis.asyncio

from contract.redis_stores import entry_of, opened_client, opened_store, prefixes
from contract.suites.store.values import (
    ARRIVAL_NS,
    CHAT,
    G1,
    G2,
    GATEWAY,
    WAIT_MAX_S,
    A,
    B,
    alive,
    enqueued,
    leased,
    metadata,
)
from qlm.domain.lease_answer import Granted
from qlm.domain.notices import InstanceNotice, LeaseHeld, QueueChanged
from qlm.domain.outcome import Outcome
from qlm.domain.output import AppendResult
from qlm.domain.plan_change import CreateGroup, SetQueue
from qlm.domain.request import RequestState
from qlm.domain.view import RequestFilter
from qlm.store.redis.store import RedisStore
from support.redis import RedisServer

KINDS = ("request", "log", "events", "watchers")


class World(NamedTuple):
    """A store, a plain client of its Redis, and the prefix of its keys."""

    store: RedisStore
    client: redis.asyncio.Redis
    prefix: str

    async def overwrite(self, kind: str, n: int = 1) -> str:
        """Write another type over a key of a request."""
        key = f"{self.prefix}{kind}:{metadata(n).id}"
        await self.client.delete(key)
        await self.client.zadd(key, {"of another program": 1})
        return key


@asynccontextmanager
async def opened_world(server: RedisServer) -> AsyncIterator[World]:
    prefix = next(prefixes)
    async with opened_client(server) as client, opened_store(server, prefix=prefix) as store:
        await alive(store, A, B)
        yield World(store, client, prefix)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_write_reaches_the_logs_of_all_other_requests(redis_server: RedisServer, kind: str) -> None:
    async with opened_world(redis_server) as world:
        await enqueued(world.store, 1, 2, watcher=GATEWAY)
        epochs = [await leased(world.store, n, A) for n in (1, 2)]
        entries = [entry_of(n, epoch, 0, 7) for n, epoch in zip((1, 2), epochs, strict=True)]
        await world.store.append(entries)
        await world.overwrite(kind)
        ends = [
            replace(entry_of(n, epoch, 1, 8), outcome=Outcome.STOP)
            for n, epoch in zip((1, 2), epochs, strict=True)
        ]
        results = await world.store.append(ends)
        damaged = {"request": AppendResult.UNKNOWN, "log": AppendResult.GAP}
        assert results == [damaged.get(kind, AppendResult.TAKEN), AppendResult.TAKEN]
        again = await world.store.reregister(metadata(1), A, (7, 8))
        if results[0] is not AppendResult.TAKEN:  # its agent has the output, so nothing is lost
            assert isinstance(again, Granted) and again.output == (7, 8)


@pytest.mark.parametrize("kind", KINDS)
async def test_all_other_leases_of_a_dead_agent_expire(redis_server: RedisServer, kind: str) -> None:
    async with opened_world(redis_server) as world:
        for n in (1, 2, 3):
            await leased(world.store, n, A)
        await world.overwrite(kind, 2)
        await world.store.leave(A)
        lost = {metadata(2).id} if kind == "request" else set()
        assert {*await world.store.expire_leases()} == {metadata(n).id for n in (1, 2, 3)} - lost
        assert (await world.store.view()).leased == {}


async def test_an_agent_is_notified_of_all_its_other_leases(redis_server: RedisServer) -> None:
    async with opened_world(redis_server) as world:
        epochs = [await leased(world.store, n, A) for n in (1, 2)]
        await world.overwrite("request")
        notices = cast("AsyncGenerator[InstanceNotice]", world.store.notices(A.instance))
        async with aclosing(notices), asyncio.timeout(WAIT_MAX_S):
            assert isinstance(await anext(notices), QueueChanged)
            assert await anext(notices) == LeaseHeld(id=metadata(2).id, epoch=epochs[1])


@pytest.mark.parametrize("kind", KINDS)
async def test_plans_lists_and_ends_go_on(redis_server: RedisServer, kind: str) -> None:
    """One such row among the requests to be dropped kept the controller from planning anything."""
    async with opened_world(redis_server) as world:
        for n in (1, 2):
            await world.store.enqueue(metadata(n, drop=True))
        await enqueued(world.store, 3, 4)
        await world.store.cancel(metadata(3).id)
        for n in (1, 3):
            await world.overwrite(kind, n)
        listed = {each.metadata.id for each in await world.store.records(RequestFilter())}
        lost = {metadata(1).id, metadata(3).id} if kind == "request" else set()
        assert listed == {metadata(n).id for n in (1, 2, 3, 4)} - lost
        expired = await world.store.expire(ARRIVAL_NS + 10**15)
        assert metadata(2).id in expired
        ended = await world.store.end_waiting([metadata(4).id], Outcome.OUTPUT_LOST, "")
        assert ended == [metadata(4).id]
        await world.store.view()


async def test_a_row_without_its_fields_counts_as_lost(redis_server: RedisServer) -> None:
    async with opened_world(redis_server) as world:
        epochs = [await leased(world.store, n, A) for n in (1, 2)]
        await world.client.hdel(f"{world.prefix}request:r0001", "arrival", "drop_at")
        entries = [entry_of(n, epoch, 0, 7) for n, epoch in zip((1, 2), epochs, strict=True)]
        assert await world.store.append(entries) == [AppendResult.UNKNOWN, AppendResult.TAKEN]
        again = await world.store.reregister(metadata(1), A, (7,))
        assert isinstance(again, Granted) and again.output == (7,)
        record = await world.store.record(metadata(1).id)
        assert record is not None and record.state is RequestState.RUNNING


@pytest.mark.parametrize("field", ["arrival", "n", "incarnation"])
async def test_a_row_with_unreadable_numbers_counts_as_lost(redis_server: RedisServer, field: str) -> None:
    """Its lease could not be granted any more, and whoever pulled its message put off all that are behind."""
    async with opened_world(redis_server) as world:
        epochs = [await leased(world.store, n, A) for n in (1, 2)]
        await world.client.hset(f"{world.prefix}request:r0001", field, "no number")
        entries = [entry_of(n, epoch, 0, 7) for n, epoch in zip((1, 2), epochs, strict=True)]
        assert await world.store.append(entries) == [AppendResult.UNKNOWN, AppendResult.TAKEN]
        await world.store.leave(A)
        assert await world.store.expire_leases() == [metadata(2).id]
        again = await world.store.lease(metadata(1), B, None)
        assert isinstance(again, Granted)
        last = replace(entry_of(1, again.lease.epoch, 0, 7), outcome=Outcome.STOP)
        assert await world.store.append([last]) == [AppendResult.TAKEN]


@pytest.mark.parametrize("metadata_text", ["no JSON", "[]", '{"slo": 1}', None])
async def test_unreadable_metadata_hold_up_no_token_of_others(
    redis_server: RedisServer, metadata_text: str | None
) -> None:
    """The write ended in the middle: some tokens were in the log, and their gateway was not told."""
    async with opened_world(redis_server) as world:
        for n in (1, 2):
            await world.store.enqueue(metadata(n, drop=True), watcher=GATEWAY)
        epochs = [await leased(world.store, n, A) for n in (1, 2)]
        row = f"{world.prefix}request:{metadata(1).id}"
        await world.client.hdel(row, "card")
        if metadata_text is not None:
            await world.client.hset(row, "card", metadata_text)
        entries = [entry_of(n, epoch, 0, 7) for n, epoch in zip((1, 2), epochs, strict=True)]
        assert await world.store.append(entries) == [AppendResult.TAKEN, AppendResult.TAKEN]


@pytest.mark.parametrize("reader", ["of another program", "soon 2"])
async def test_an_unreadable_reader_holds_up_no_token_of_others(
    redis_server: RedisServer, reader: str
) -> None:
    async with opened_world(redis_server) as world:
        await enqueued(world.store, 1, 2, watcher=GATEWAY)
        epochs = [await leased(world.store, n, A) for n in (1, 2)]
        await world.client.hset(f"{world.prefix}request:{metadata(1).id}", "reader", reader)
        entries = [entry_of(n, epoch, 0, 7) for n, epoch in zip((1, 2), epochs, strict=True)]
        assert await world.store.append(entries) == [AppendResult.TAKEN, AppendResult.TAKEN]


@pytest.mark.parametrize("field", ["seq", "count", "pulled"])
async def test_a_group_with_unreadable_numbers_counts_as_lost(redis_server: RedisServer, field: str) -> None:
    """The controller could not read the view any more, and planned nothing."""
    async with opened_world(redis_server) as world:
        await enqueued(world.store, 1, 2)
        await world.store.apply(
            [CreateGroup(id=G1, cls=CHAT, count=1), CreateGroup(id=G2, cls=CHAT, count=1)]
        )
        await world.store.apply([SetQueue(instance=A.instance, groups=(G1, G2))])
        await world.client.hset(f"{world.prefix}group:{G1}", field, "no number")
        (cls,) = (await world.store.view()).classes
        assert [group.id for group in cls.groups] == [G2]
        queue = await world.store.virtual_queue(A.instance)
        assert [group.id for group in queue.groups] == [G2]


async def test_the_key_is_kept_for_operators_and_reported(redis_server: RedisServer) -> None:
    async with opened_world(redis_server) as world:
        await enqueued(world.store, 1)
        assert await world.store.warnings() == ()
        await world.overwrite("request")
        assert await world.store.record(metadata(1).id) is None
        (warning,) = await world.store.warnings()
        assert f"{world.prefix}aside:" in warning
        kept = f"{world.prefix}aside:request:{metadata(1).id}"
        assert await world.client.zrange(kept, 0, -1) == [b"of another program"]
        assert await world.client.ttl(kept) > 0
        assert await world.store.setting_warnings() == ()
