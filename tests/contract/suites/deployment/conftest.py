"""Bearers of marks under test: in memory, Redis, and RabbitMQ with classic and with quorum queues."""

import itertools
import random
import secrets
from collections.abc import AsyncIterator

import pika
import pytest
import redis.asyncio

from contract.suites.deployment.bearer import Bearer
from contract.suites.wired import WiredClients
from qlm.broker.rabbitmq.broker import RabbitSettings
from qlm.broker.rabbitmq.deployment import RabbitMark
from qlm.broker.topology import DEPLOYMENT, QueueKind, QueueType, queue_in
from qlm.cli.runtime.clock import SystemClock
from qlm.domain.ports.deployment import MarkedServer
from qlm.store.core.limits import StoreLimits
from qlm.store.redis.deployment import RedisMark
from qlm.store.redis.pipeline import ScriptPipeline
from qlm.store.redis.scripts import Scripts
from support.marked_servers import MemoryMark, MemoryServer
from support.rabbitmq import RabbitMQ
from support.redis import RedisServer

LIFE_S = 3.0


class MemoryBearer:
    """A server in memory."""

    def __init__(self) -> None:
        self._server = MemoryServer("memory", LIFE_S)

    async def open(self) -> MarkedServer:
        return MemoryMark(self._server, random.Random(1))

    async def crash(self, process: MarkedServer) -> None:
        assert isinstance(process, MemoryMark)
        process.crash()

    async def empty(self) -> None:
        self._server.empty()

    async def aclose(self) -> None:
        pass


class RedisBearer:
    """A prefix of a Redis; a crashed process is one that does not join again."""

    def __init__(self, server: RedisServer) -> None:
        self._address = server.url
        self._prefix = f"marked-{secrets.token_hex(4)}:"
        self._clients: list[redis.asyncio.Redis] = []
        self._pipelines: list[ScriptPipeline] = []

    async def open(self) -> MarkedServer:
        client = redis.asyncio.Redis.from_url(self._address)
        self._clients.append(client)
        pipeline = ScriptPipeline(client.connection_pool.make_connection, LIFE_S)
        self._pipelines.append(pipeline)
        scripts = Scripts(
            pipeline, self._address, prefix=self._prefix, clock=SystemClock(), limits=StoreLimits()
        )
        return RedisMark(scripts, self._address, ttl_s=LIFE_S)

    async def crash(self, process: MarkedServer) -> None:
        pass

    async def empty(self) -> None:
        async for key in self._clients[0].scan_iter(f"{self._prefix}*"):
            await self._clients[0].delete(key)

    async def aclose(self) -> None:
        for pipeline in self._pipelines:
            await pipeline.close()
        for client in self._clients:
            await client.aclose()


class RabbitBearer:
    """A name on a RabbitMQ; each process has a wire of its own to it, which a crash cuts."""

    def __init__(self, server: RabbitMQ, kind: QueueType) -> None:
        self._server = server
        self._kind = QueueKind(type=kind)
        self._name = f"marked-{secrets.token_hex(4)}"
        self._numbers = itertools.count()
        self._clients = WiredClients[MarkedServer](server.port)

    async def open(self) -> MarkedServer:
        async def connect(url: str) -> RabbitMark:
            settings = RabbitSettings(url=url, deployment=self._name, kind=self._kind)
            return RabbitMark(settings, random.Random(next(self._numbers)))

        return await self._clients.connect(connect)

    async def crash(self, process: MarkedServer) -> None:
        await self._clients.crash(process)

    async def empty(self) -> None:
        with pika.BlockingConnection(pika.URLParameters(self._server.url)) as connection:
            connection.channel().queue_delete(queue_in(self._name, DEPLOYMENT))

    async def aclose(self) -> None:
        await self._clients.aclose()


_SERVERS = pytest.mark.servers


@pytest.fixture(
    params=[
        "memory",
        *(pytest.param(name, marks=_SERVERS) for name in ("redis", "rabbitmq", "rabbitmq-quorum")),
    ]
)
async def bearer(request: pytest.FixtureRequest) -> AsyncIterator[Bearer]:
    """A bearer of each implementation, without a mark."""
    opened: MemoryBearer | RedisBearer | RabbitBearer
    match request.param:
        case "memory":
            opened = MemoryBearer()
        case "redis":
            opened = RedisBearer(request.getfixturevalue("redis_server"))
        case "rabbitmq":
            opened = RabbitBearer(request.getfixturevalue("rabbitmq"), QueueType.CLASSIC)
        case _:
            opened = RabbitBearer(request.getfixturevalue("quorum_rabbitmq"), QueueType.QUORUM)
    yield opened
    await opened.aclose()
