"""A Redis that drops keys: no process starts on it, operators get a warning, and no client gets a hole."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis.asyncio

from qlm.cli.config.default import emulated_config
from qlm.cli.config.errors import ConfigError
from qlm.cli.runtime.backends import open_backends
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


@pytest.fixture
async def cluster(server: RedisServer, tmp_path: Path) -> AsyncIterator[Cluster]:
    store: Any = RedisStore(server.url, SystemClock(), prefix=PREFIX)
    async with running_cluster(tmp_path, store) as running:
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
        assert (await http.get("/admin/v1/store")).json() == {"warnings": []}
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
