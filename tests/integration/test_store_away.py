"""A store that is away or cannot write: not ready, clients hear 503 within a limit, and requests continue."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis.asyncio

from qlm.broker.sqlite.file import SqliteFile
from qlm.broker.sqlite.journal import SqliteJournal
from qlm.cli.inspect.readiness_checks import readiness
from qlm.domain.request import RequestState
from qlm.domain.view import RequestFilter
from qlm.gateway.core.limits import GatewayLimits
from qlm.store.embedded.store import EmbeddedStore
from qlm.store.redis.store import RedisStore
from support.flaky import until
from support.gateway import Cluster, SystemClock, running_cluster
from support.redis import RedisServer

LIMIT_S = 1.0
LIMITS = GatewayLimits(publish_timeout_s=LIMIT_S, view_interval_s=0.05, poll_s=0.1, poll_max_s=0.2)
WAIT_S = 60.0
BODY = {"model": "emulated", "prompt": "Hi"}
QUEUED = RequestFilter(state=RequestState.QUEUED)

Step = Callable[[RedisServer, redis.asyncio.Redis], Awaitable[object]]


async def no_replicas(server: RedisServer, client: redis.asyncio.Redis) -> None:
    await client.config_set("min-replicas-to-write", 1)


async def no_memory(server: RedisServer, client: redis.asyncio.Redis) -> None:
    await client.config_set("maxmemory", 1)


async def read_only(server: RedisServer, client: redis.asyncio.Redis) -> None:
    await client.replicaof("127.0.0.1", 1)  # nobody there: it keeps its data


async def no_rights(server: RedisServer, client: redis.asyncio.Redis) -> None:
    await client.acl_setuser("default", enabled=True, categories=["-@write"])


async def killed(server: RedisServer, client: redis.asyncio.Redis) -> None:
    await asyncio.to_thread(server.kill)


async def heal(server: RedisServer, client: redis.asyncio.Redis) -> None:
    await client.config_set("min-replicas-to-write", 0)
    await client.config_set("maxmemory", "256mb")
    await client.acl_setuser("default", enabled=True, categories=["+@all"])
    await client.replicaof("NO", "ONE")


FAULTS = pytest.mark.parametrize(
    ("fault", "why"),
    [(no_replicas, "NOREPLICAS"), (no_memory, "maxmemory"), (read_only, "read only"), (no_rights, "script")],
)


@pytest.fixture
async def server(start_redis: Callable[..., RedisServer]) -> RedisServer:
    return start_redis(appendonly=True)


@pytest.fixture
async def client(server: RedisServer) -> AsyncIterator[redis.asyncio.Redis]:
    opened = redis.asyncio.Redis.from_url(server.url)
    yield opened
    await opened.aclose()


@pytest.fixture
async def cluster(server: RedisServer, tmp_path: Path) -> AsyncIterator[Cluster]:
    store: Any = RedisStore(server.url, SystemClock(), prefix="away:")
    async with running_cluster(tmp_path, store) as running:
        yield running


@pytest.fixture
async def http(cluster: Cluster) -> AsyncIterator[httpx.AsyncClient]:
    url = await cluster.gateway(limits=LIMITS)
    async with httpx.AsyncClient(base_url=url, timeout=WAIT_S) as opened:
        yield opened


async def is_ready(http: httpx.AsyncClient) -> bool:
    return (await http.get("/readyz")).status_code == 200


async def refuses(http: httpx.AsyncClient) -> bool:
    """Return whether the gateway refuses requests, as clients are told to expect it."""
    answer = await http.post("/v1/completions", json=BODY | {"max_tokens": 1})
    if answer.status_code != 503:
        return False
    assert answer.json()["error"]["code"] == "store_unavailable"
    assert int(answer.headers["retry-after"]) >= LIMIT_S
    return True


@FAULTS
@pytest.mark.servers
async def test_a_redis_that_cannot_write_is_not_ready_and_requests_are_refused(
    server: RedisServer,
    client: redis.asyncio.Redis,
    cluster: Cluster,
    http: httpx.AsyncClient,
    fault: Step,
    why: str,
) -> None:
    assert await is_ready(http)
    await cluster.agent.rest()  # it knows no outage
    await fault(server, client)
    answer = await http.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (503, "unavailable")
    assert why in answer.json()["store"]
    await until(lambda: refuses(http), WAIT_S)
    await heal(server, client)
    cluster.agent.working.set()
    await until(lambda: is_ready(http), WAIT_S)

    async def serves() -> bool:
        return (await http.post("/v1/completions", json=BODY)).status_code == 200

    await until(serves, WAIT_S)


@pytest.mark.servers
async def test_the_longer_a_redis_is_full_the_later_clients_are_asked_to_come_back(
    server: RedisServer, client: redis.asyncio.Redis, cluster: Cluster
) -> None:
    url = await cluster.gateway(limits=LIMITS.model_copy(update={"retry_after_max_s": 3.0}))
    await cluster.agent.rest()
    await no_memory(server, client)
    asked: list[int] = []
    async with httpx.AsyncClient(base_url=url, timeout=WAIT_S) as http:

        async def at_most() -> bool:
            answer = await http.post("/v1/completions", json=BODY | {"max_tokens": 1})
            if answer.status_code == 503:
                asked.append(int(answer.headers["retry-after"]))
            return 3 in asked

        await until(at_most, WAIT_S)
    assert asked == sorted(asked)
    await heal(server, client)


@pytest.mark.servers
async def test_the_cure_of_a_full_redis_is_no_restart(
    server: RedisServer, client: redis.asyncio.Redis, http: httpx.AsyncClient
) -> None:
    await no_memory(server, client)
    found = {each.check: each for each in readiness((await http.get("/readyz")).json())}
    assert "it is full; a restart does not help" in found["store"].remedy
    await heal(server, client)


@pytest.mark.parametrize("fault", [no_replicas, killed])
@pytest.mark.servers
async def test_a_plain_client_hears_503_once_the_store_is_away_for_the_limit_and_its_request_continues(
    server: RedisServer,
    client: redis.asyncio.Redis,
    cluster: Cluster,
    http: httpx.AsyncClient,
    fault: Step,
) -> None:
    await cluster.agent.rest()
    waiting = asyncio.create_task(http.post("/v1/completions", json=BODY))
    await until(lambda: cluster.store.records(QUEUED), WAIT_S)
    await fault(server, client)
    answer = await waiting
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
    assert answer.headers["retry-after"] == "1"
    id = answer.headers["x-request-id"]
    if fault is killed:
        await asyncio.to_thread(server.start)
    await heal(server, client)
    await until(lambda: is_ready(http), WAIT_S)
    cluster.agent.working.set()

    async def served() -> bool:
        found = await http.get(f"/v1/requests/{id}")
        return bool(found.json().get("outcome") == "stop")

    await until(served, WAIT_S)


async def test_a_journal_whose_file_is_gone_is_not_ready_and_requests_are_refused(tmp_path: Path) -> None:
    path, aside = tmp_path / "store.sqlite", tmp_path / "aside"
    file = await SqliteFile.open(path)
    store = await EmbeddedStore.open(SystemClock(), SqliteJournal(file))
    async with running_cluster(tmp_path, store) as cluster:
        url = await cluster.gateway(limits=LIMITS)
        async with httpx.AsyncClient(base_url=url, timeout=WAIT_S) as http:
            assert await is_ready(http)
            await cluster.agent.rest()  # it knows no outage
            path.rename(aside)
            answer = await http.get("/readyz")
            assert answer.status_code == 503
            assert "is gone" in answer.json()["store"]
            await until(lambda: refuses(http), WAIT_S)
            aside.rename(path)
            cluster.agent.working.set()
            await until(lambda: is_ready(http), WAIT_S)
            assert (await http.post("/v1/completions", json=BODY)).status_code == 200
    await file.close()
