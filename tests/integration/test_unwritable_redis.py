"""A Redis that cannot write, has lost keys or has gone back, under an agent and a controller at work."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis.asyncio

from qlm.domain.errors import StoreUnavailableError
from qlm.domain.ids import RequestId, TokenIds
from qlm.domain.ports.api_keys import ApiKey, Scope
from qlm.domain.request import RequestState
from qlm.store.redis.store import RedisStore
from support.flaky import until
from support.gateway import SystemClock
from support.plant import M, Plant, answer_to, plant
from support.redis import RedisServer
from support.requests import a_request
from support.wire import Wire

pytestmark = pytest.mark.servers

ENOUGH = 30
"""Refused commands: more than one from every loop of an agent and a controller."""
WAIT_S = 60.0


@pytest.fixture
async def server(start_redis: Callable[..., RedisServer]) -> RedisServer:
    return start_redis()


@pytest.fixture
async def client(server: RedisServer) -> AsyncIterator[redis.asyncio.Redis]:
    opened = redis.asyncio.Redis.from_url(server.url)
    yield opened
    await opened.aclose()


@asynccontextmanager
async def closing(store: RedisStore) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await store.close()


@asynccontextmanager
async def at_work(server: RedisServer, tmp_path: Path) -> AsyncIterator[Plant]:
    """Let requests run; at the end all must be answered exactly, by the agent of the beginning."""
    store = RedisStore(server.url, SystemClock(), prefix="unwritable:")
    async with closing(store), plant(tmp_path, store=store) as it:
        it.engines[M].tokens_max = 4  # so few that none has ended
        await it.accept(*(a_request(f"r{n}") for n in range(8)))
        await until(lambda: it.engines[M].made >= 4, WAIT_S)
        yield it
        it.engines[M].tokens_max = 1_000_000
        await until(it.all_ended, WAIT_S)
        await until(it.no_message_left, WAIT_S)
        assert not it.running.done()
        for request in it.requests:
            assert await output(it, request.id) == answer_to(request)


async def output(it: Plant, id: str) -> TokenIds:
    found = await it.store.read_output(id, 0)  # type: ignore[arg-type]
    assert found is not None
    return found.token_ids


async def refuses(client: redis.asyncio.Redis, code: str) -> None:
    """Wait until Redis has refused with a code what every loop has tried."""

    async def tried() -> bool:
        stats = await client.info("errorstats")
        return int(stats.get(f"errorstat_{code}", {"count": 0})["count"]) >= ENOUGH

    await until(tried, WAIT_S)


@pytest.mark.parametrize(
    ("setting", "value", "code"), [("min-replicas-to-write", 1, "NOREPLICAS"), ("maxmemory", 1, "OOM")]
)
async def test_a_redis_that_cannot_write_is_waited_for(
    server: RedisServer, tmp_path: Path, client: redis.asyncio.Redis, setting: str, value: int, code: str
) -> None:
    before = (await client.config_get(setting))[setting]
    assert before is not None
    async with at_work(server, tmp_path) as it:
        await client.config_set(setting, value)
        await refuses(client, code)
        assert not it.running.done()
        await client.config_set(setting, before)


async def test_a_redis_that_became_a_replica_is_waited_for(
    server: RedisServer, tmp_path: Path, client: redis.asyncio.Redis
) -> None:
    async with at_work(server, tmp_path) as it:
        await client.replicaof("127.0.0.1", 1)  # nobody there: it keeps its data
        await refuses(client, "READONLY")
        assert not it.running.done()
        await client.replicaof("NO", "ONE")


async def test_keys_and_media_follow_to_the_new_primary(
    start_redis: Callable[..., RedisServer], server: RedisServer, client: redis.asyncio.Redis
) -> None:
    key = ApiKey(id="a", digest="d", tenant="t", scopes=(Scope.INFER,), created_ns=0)
    async with Wire(server.port) as wire:
        store = RedisStore(f"redis://127.0.0.1:{wire.port}/0", SystemClock(), prefix="unwritable:")
        async with closing(store):
            assert await store.put_media(RequestId("before"), b"image")
            wire.turn(start_redis().port)
            await client.replicaof("127.0.0.1", 1)  # its connections stay
            with pytest.raises(StoreUnavailableError, match="read only replica"):
                await store.put_media(RequestId("after"), b"image")
            assert await store.put_media(RequestId("after"), b"image")
            await store.add_api_key(key)
            assert list(await store.api_keys()) == [key]


async def test_a_request_that_ended_before_redis_went_back_does_not_run_for_ever(
    server: RedisServer, tmp_path: Path, client: redis.asyncio.Redis
) -> None:
    store = RedisStore(server.url, SystemClock(), prefix="unwritable:")
    async with closing(store), plant(tmp_path, store=store) as it:
        it.engines[M].tokens_max = 2
        await it.accept(a_request("r"))
        await until(lambda: it.engines[M].made == 2, WAIT_S)
        earlier = {key: await client.dump(key) or b"" async for key in client.scan_iter("unwritable:*")}
        it.engines[M].tokens_max = 1_000_000
        await until(it.all_ended, WAIT_S)
        await until(it.no_message_left, WAIT_S)
        async with client.pipeline() as back:
            back.flushall()
            for key, value in earlier.items():
                back.restore(key, 0, value)
            await back.execute()
        await client.client_kill_filter(_type="pubsub")  # as its end would have done

        async def waits_again() -> bool:
            record = await store.record(RequestId("r"))
            return record is not None and record.lease is None and record.state is RequestState.QUEUED

        await until(waits_again, WAIT_S)
        # Without a message it ends as `output_lost`.


@pytest.mark.parametrize("seed", range(3))
async def test_a_third_of_the_keys_lost_costs_no_answer(
    server: RedisServer, tmp_path: Path, client: redis.asyncio.Redis, seed: int
) -> None:
    async with at_work(server, tmp_path) as it:
        await it.accept(*(a_request(f"later{n}") for n in range(8)))
        keys = sorted([key async for key in client.scan_iter("unwritable:*")])
        await client.delete(*random.Random(seed).sample(keys, len(keys) // 3))
