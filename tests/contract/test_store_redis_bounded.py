"""Script runs in Redis are short: each blocks every other client."""

import pytest
import redis.asyncio

from contract.redis_stores import opened_client, opened_store
from contract.suites.store.values import BATCH, A, alive, enqueued, leased, metadata
from qlm.domain.request import RequestState
from qlm.domain.view import RequestFilter
from qlm.store.redis import reads
from support.redis import RedisServer


async def script_runs(client: redis.asyncio.Redis) -> int:
    stats = await client.info("commandstats")
    return int(stats["cmdstat_evalsha"]["calls"])


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
