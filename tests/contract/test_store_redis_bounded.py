"""Script runs in Redis are short: each blocks every other client."""

import asyncio

import pytest
import redis.asyncio

from contract.redis_stores import opened_client, opened_store, prefixes
from contract.suites.store.values import ARRIVAL_NS, BATCH, A, alive, enqueued, leased, metadata
from qlm.domain.request import RequestState
from qlm.domain.view import RequestFilter
from qlm.store.core.limits import StoreLimits
from qlm.store.redis import reads
from support.redis import RedisServer


async def script_runs(client: redis.asyncio.Redis) -> int:
    stats = await client.info("commandstats")
    return int(stats["cmdstat_evalsha"]["calls"])


async def test_ended_requests_beyond_the_limit_are_dropped_in_several_runs(redis_server: RedisServer) -> None:
    prefix, fewer = next(prefixes), StoreLimits(results_max=100)
    async with (
        opened_store(redis_server, prefix=prefix) as store,
        opened_store(redis_server, prefix=prefix, limits=fewer) as limited,
        opened_client(redis_server) as client,
    ):
        await asyncio.gather(*(store.withdraw(metadata(n)) for n in range(1, 701)))
        await limited.withdraw(metadata(701))
        assert await client.llen(f"{prefix}ended") == 501
        former = await script_runs(client)
        assert await limited.expire(ARRIVAL_NS) == []
        assert await script_runs(client) - former == 3
        kept = await store.records(RequestFilter(limit=1000))
        assert {each.metadata.id for each in kept} == {metadata(n).id for n in range(602, 702)}


@pytest.mark.parametrize("looks_max", [1, 2, 3, 4, 500])
async def test_a_list_of_few_among_many_requests_takes_several_runs(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, looks_max: int
) -> None:
    monkeypatch.setattr(reads, "LOOKS_MAX", looks_max)
    async with opened_store(redis_server) as store, opened_client(redis_server) as client:
        await alive(store, A)
        await enqueued(store, 1, 2, 3, 5, 6, 7)
        await store.enqueue(metadata(4, cls=BATCH))
        await leased(store, 2, A)

        async def listed(where: RequestFilter) -> list[int]:
            return [each.metadata.prompt_tokens - 10 for each in await store.records(where)]

        assert await listed(RequestFilter()) == [7, 6, 5, 4, 3, 2, 1]
        assert await listed(RequestFilter(limit=3)) == [7, 6, 5]
        assert await listed(RequestFilter(model="mistral")) == [4]
        assert await listed(RequestFilter(state=RequestState.QUEUED, limit=4)) == [7, 6, 5, 4]
        assert await listed(RequestFilter(state=RequestState.RUNNING)) == [2]
        former = await script_runs(client)
        assert await listed(RequestFilter(state=RequestState.ENDED)) == []
        assert await script_runs(client) - former == 7 // looks_max + 1
