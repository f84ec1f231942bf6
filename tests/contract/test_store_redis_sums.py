"""Sums of a class in Redis: very large ones, and damaged ones."""

from dataclasses import replace

import pytest

from contract.redis_stores import entry_of, opened_client, opened_store, prefixes
from contract.suites.store.values import BATCH, CHAT, A, alive, leased, metadata
from qlm.domain.outcome import Outcome
from qlm.domain.output import AppendResult
from qlm.domain.request import RequestMetadata
from qlm.store.redis.codec import class_key
from support.redis import RedisServer

LARGE = 3_000_000_000


def large(n: int) -> RequestMetadata:
    """Return a request whose squared output limit fills 64 bits."""
    request = metadata(n)
    return replace(request, sampling=replace(request.sampling, max_tokens=LARGE - n))


async def test_requests_with_large_limits_are_accepted_however_many(redis_server: RedisServer) -> None:
    async with opened_store(redis_server) as store:
        for n in range(5):
            assert (await store.enqueue(large(n))).created
        (cls,) = (await store.view()).classes
        assert (cls.queued, cls.accepted) == (5, 5)
        assert cls.mean_max_tokens == pytest.approx(LARGE - 2)
        assert cls.var_max_tokens == pytest.approx(2, abs=1e3)  # squares are rounded


@pytest.mark.parametrize("damaged", ["prompt_squares", "max_tokens", "accepted"])
async def test_the_sums_of_a_class_begin_anew_if_one_is_damaged(
    redis_server: RedisServer, damaged: str
) -> None:
    prefix = next(prefixes)
    async with opened_store(redis_server, prefix=prefix) as store, opened_client(redis_server) as client:
        await alive(store, A)
        await client.hset(f"{prefix}class:{class_key(CHAT)}", damaged, "no number")
        assert (await store.enqueue(metadata(1))).created
        assert await store.waiting(CHAT) == [metadata(1).id]
        (cls,) = (await store.view()).classes
        assert (cls.queued, cls.accepted) == (1, 1)
        kept = await client.hgetall(f"{prefix}aside:class:{class_key(CHAT)}")
        assert kept[damaged.encode()] == b"no number"
        assert len(await store.warnings()) == 1


async def test_a_class_with_a_damaged_sum_is_planned(redis_server: RedisServer) -> None:
    """It was in no view any more, and its requests waited until another one came."""
    prefix = next(prefixes)
    async with opened_store(redis_server, prefix=prefix) as store, opened_client(redis_server) as client:
        assert (await store.enqueue(metadata(1))).created
        await client.hset(f"{prefix}class:{class_key(CHAT)}", "accepted", "no number")
        (cls,) = (await store.view()).classes
        assert (cls.queued, cls.accepted) == (1, 0)


async def test_requests_of_a_class_with_a_damaged_sum_end_as_all_others(redis_server: RedisServer) -> None:
    """They ended in part: their keys never expired, no webhook was sent, and the writes of others failed."""
    prefix = next(prefixes)
    async with opened_store(redis_server, prefix=prefix) as store, opened_client(redis_server) as client:
        await alive(store, A)
        epochs = [await leased(store, 1, A), await leased(store, 2, A, cls=BATCH)]
        await client.hset(f"{prefix}class:{class_key(CHAT)}", "finished", "no number")
        entries = [entry_of(n, epoch, 0, 7) for n, epoch in zip((1, 2), epochs, strict=True)]
        ends = [replace(each, outcome=Outcome.STOP) for each in entries]
        assert await store.append(ends) == [AppendResult.TAKEN, AppendResult.TAKEN]
        for id in (metadata(1).id, metadata(2).id):
            assert await client.ttl(f"{prefix}request:{id}") > 0
