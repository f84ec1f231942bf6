"""A Redis whose clock is set back: what died then is not taken for live until the clock is there again."""

from collections.abc import AsyncIterator

import pytest
import redis.asyncio

from contract.suites.store.values import A, status
from qlm.domain.ids import ControllerId, SessionId
from qlm.domain.lease import Holder, InstanceHeld
from qlm.store.redis.store import RedisStore
from support.gateway import SystemClock
from support.redis import RedisServer

PREFIX = "clock:"
TTL_S = 4.0
HOUR_MS = 3_600_000


@pytest.fixture
async def client(redis_server: RedisServer) -> AsyncIterator[redis.asyncio.Redis]:
    opened = redis.asyncio.Redis.from_url(redis_server.url)
    await opened.flushdb()
    yield opened
    await opened.aclose()


@pytest.fixture
async def store(redis_server: RedisServer, client: redis.asyncio.Redis) -> AsyncIterator[RedisStore]:
    opened = RedisStore(redis_server.url, SystemClock(), prefix=PREFIX)
    yield opened
    await opened.close()


async def set_back(client: redis.asyncio.Redis) -> None:
    """Give keys that expire the life that they have once the clock was set back by an hour."""
    async for name in client.scan_iter(f"{PREFIX}*"):
        if (rest_ms := await client.pttl(name)) > 0:
            await client.pexpire(name, rest_ms + HOUR_MS)


async def lives_ms(client: redis.asyncio.Redis, name: str) -> int:
    return int(await client.pttl(PREFIX + name))


async def test_a_heartbeat_lives_no_longer_for_it(store: RedisStore, client: redis.asyncio.Redis) -> None:
    await store.heartbeat(status(A), ttl_s=TTL_S)
    await set_back(client)
    assert await lives_ms(client, f"instance:{A.instance}") > HOUR_MS
    assert [each.holder for each in (await store.view()).instances] == [A]
    assert 0 < await lives_ms(client, f"instance:{A.instance}") <= TTL_S * 1e3


async def test_another_session_of_the_instance_waits_no_longer_for_it(
    store: RedisStore, client: redis.asyncio.Redis
) -> None:
    await store.heartbeat(status(A), ttl_s=TTL_S)
    await set_back(client)
    refused = await store.heartbeat(status(Holder(A.instance, SessionId("next"))), ttl_s=TTL_S)
    assert isinstance(refused, InstanceHeld) and refused.lapses_in_s <= TTL_S
    assert 0 < await lives_ms(client, f"instance:{A.instance}") <= TTL_S * 1e3


async def test_a_leadership_lasts_no_longer_for_it(store: RedisStore, client: redis.asyncio.Redis) -> None:
    first = await store.acquire_leadership(ControllerId("dead"), TTL_S)
    await set_back(client)
    assert await store.acquire_leadership(ControllerId("standby"), TTL_S) == first
    assert 0 < await lives_ms(client, "leader") <= TTL_S * 1e3
