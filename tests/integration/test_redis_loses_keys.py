"""A Redis that drops keys: no process starts on it, operators get a warning, and no client gets a hole."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis.asyncio

from qlm.cli.config.default import emulated_config
from qlm.cli.config.errors import ConfigError
from qlm.cli.runtime.backends import open_backends
from qlm.domain.ids import RequestId
from qlm.domain.output import OutputSlice
from qlm.store.redis.store import RedisStore
from support.gateway import Cluster, SystemClock, running_cluster
from support.rabbitmq import RabbitMQ
from support.redis import RedisServer

BODY = {"model": "emulated", "prompt": "Hi"}
PREFIX = "loses-keys:"


@pytest.fixture
async def server(start_redis: Callable[..., RedisServer]) -> RedisServer:
    return start_redis()


@pytest.fixture
async def client(server: RedisServer) -> AsyncIterator[redis.asyncio.Redis]:
    opened = redis.asyncio.Redis.from_url(server.url)
    yield opened
    await opened.aclose()


class LosingStore(RedisStore):
    """Loses the output log of a request, or begins it anew, between two reads."""

    loses: Callable[[RequestId], Awaitable[object]] | None = None

    async def read_output(self, id: RequestId, offset: int) -> OutputSlice | None:
        if self.loses is not None:
            await self.loses(id)
        return await super().read_output(id, offset)


@pytest.fixture
def store(server: RedisServer) -> LosingStore:
    return LosingStore(server.url, SystemClock(), prefix=PREFIX)


@pytest.fixture
async def cluster(store: LosingStore, tmp_path: Path) -> AsyncIterator[Cluster]:
    shared: Any = store
    async with running_cluster(tmp_path, shared) as running:
        yield running


async def test_no_process_starts_on_a_redis_that_drops_keys(
    server: RedisServer, client: redis.asyncio.Redis, rabbitmq: RabbitMQ
) -> None:
    await client.config_set("maxmemory-policy", "volatile-lru")
    config = emulated_config({"broker": rabbitmq.url, "store": server.url, "deployment_name": "loses-keys"})
    async with AsyncExitStack() as stack:
        with pytest.raises(ConfigError, match="maxmemory-policy is volatile-lru; expected noeviction"):
            await open_backends(config, SystemClock(), stack)
    await client.config_set("maxmemory-policy", "noeviction")
    async with AsyncExitStack() as stack:
        assert not (await open_backends(config, SystemClock(), stack)).embedded


async def test_operators_get_a_warning_of_a_redis_that_began_to_drop_keys(
    cluster: Cluster, client: redis.asyncio.Redis
) -> None:
    url = cluster.admin_urls[await cluster.gateway()]
    async with httpx.AsyncClient(base_url=url, timeout=20) as http:
        assert (await http.get("/admin/v1/store")).json()["warnings"] == []
        await client.config_set("maxmemory-policy", "allkeys-lru")
        (warning,) = (await http.get("/admin/v1/store")).json()["warnings"]
        assert "maxmemory-policy is allkeys-lru" in warning


@pytest.mark.parametrize("left", [b"", b"world!"])
async def test_an_answer_with_a_hole_is_said_to_be_lost_and_its_key_may_be_used_again(
    cluster: Cluster, client: redis.asyncio.Redis, left: bytes
) -> None:
    url = await cluster.gateway()
    key = {"idempotency-key": f"of {len(left)}"}
    async with httpx.AsyncClient(base_url=url, timeout=20) as http:
        first = await http.post("/v1/completions", json=BODY, headers=key)
        assert (first.status_code, first.json()["choices"][0]["text"]) == (200, "Hello, world!")
        id = first.headers["x-request-id"]
        packed = b"".join(bytes((letter, 0, 0, 0)) for letter in left)
        await client.set(f"{PREFIX}log:{id}", packed)
        found = await http.get(f"/v1/requests/{id}")
        assert (found.json()["outcome"], found.json()["error"]["code"]) == ("output_lost", "output_lost")
        events = await http.get(f"/v1/requests/{id}/events")
        assert '"output_lost"' in events.text and "world" not in events.text
        again = await http.post("/v1/completions", json=BODY, headers=key)
        assert (again.status_code, again.json()["choices"][0]["text"]) == (200, "Hello, world!")
        assert again.headers["x-request-id"] != id


@pytest.mark.parametrize("begun_anew", [False, True])
async def test_a_log_that_is_lost_while_an_answer_is_looked_up_gives_no_empty_answer(
    cluster: Cluster, store: LosingStore, client: redis.asyncio.Redis, begun_anew: bool
) -> None:
    """The state said that it had ended well, and `response` had no text and no `finish_reason`."""

    async def lose(id: RequestId) -> None:
        await client.delete(f"{PREFIX}log:{id}")
        if begun_anew:
            await client.hdel(f"{PREFIX}request:{id}", "outcome")
            await client.hset(f"{PREFIX}request:{id}", "state", "running")
            await client.hset(f"{PREFIX}request:{id}", "tokens", "0")

    async with httpx.AsyncClient(base_url=await cluster.gateway(), timeout=20) as http:
        id = (await http.post("/v1/completions", json=BODY)).headers["x-request-id"]
        store.loses = lose
        found = (await http.get(f"/v1/requests/{id}")).json()
        assert (found["outcome"], found["error"]["code"]) == ("output_lost", "output_lost")
        assert "response" not in found
