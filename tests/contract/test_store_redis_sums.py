"""Sums of a class in Redis: very large ones, and damaged ones."""

from dataclasses import replace

import pytest

from contract.redis_stores import opened_client, opened_store, prefixes
from contract.suites.store.values import CHAT, A, alive, metadata
from qlm.domain.errors import StoreDataError
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
async def test_damaged_sums_leave_no_row_of_a_request_that_does_not_wait(
    redis_server: RedisServer, damaged: str
) -> None:
    prefix = next(prefixes)
    async with opened_store(redis_server, prefix=prefix) as store, opened_client(redis_server) as client:
        await alive(store, A)
        await client.hset(f"{prefix}class:{class_key(CHAT)}", damaged, "no number")
        with pytest.raises(StoreDataError):
            await store.enqueue(metadata(1))
        assert await store.record(metadata(1).id) is None
        await client.delete(f"{prefix}class:{class_key(CHAT)}")
        assert (await store.enqueue(metadata(1))).created
        assert await store.waiting(CHAT) == [metadata(1).id]
