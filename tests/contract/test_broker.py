"""The broker contract on the SQLite file and on a real RabbitMQ, with classic and with quorum queues."""

import contextlib
import itertools
import random
import secrets
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from qlm.broker.contract import CHECKS, ORDER_CHECKS
from qlm.broker.contract_storage import Check
from qlm.broker.rabbitmq import RabbitBroker, RabbitSettings
from qlm.broker.sqlite import SqliteQueues
from qlm.broker.sqlite_file import SqliteFile
from qlm.broker.topology import QueueKind, QueueType
from qlm.domain.ids import QueueName
from qlm.domain.ports.broker import Broker
from support.rabbitmq import RabbitMQ, missing, running_rabbitmq
from support.wire import Wire


class SqliteStorage:
    """A SQLite file; all clients live in one process, so a crash ends them all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lives = itertools.count()
        self._path = folder / "life-0.db"
        self._file: SqliteFile | None = None
        self._queues: SqliteQueues | None = None
        self._names = itertools.count()

    def queue(self, label: str = "q") -> QueueName:
        return QueueName(f"{label}.{next(self._names)}")

    async def open(self) -> Broker:
        if self._queues is None:
            self._path = self._folder / f"life-{next(self._lives)}.db"
            self._file = await SqliteFile.open(self._path)
            self._queues = await SqliteQueues.open(self._file)
        return self._queues.broker()

    async def crash(self, broker: Broker) -> None:
        """Go on with the bytes that the file system holds at this moment, as after a kill -9."""
        successor = self._folder / f"life-{next(self._lives)}.db"
        for suffix in ("", "-wal"):
            shutil.copy(f"{self._path}{suffix}", f"{successor}{suffix}")
        await self.aclose()
        self._path = successor
        self._file = await SqliteFile.open(self._path)
        self._queues = await SqliteQueues.open(self._file)

    async def aclose(self) -> None:
        if self._queues is not None and self._file is not None:
            await self._queues.close()
            await self._file.close()


class RabbitStorage:
    """A RabbitMQ node; each client has a wire of its own to it, which a crash cuts."""

    def __init__(self, port: int, kind: QueueType) -> None:
        self._port = port
        self._kind = QueueKind(type=kind)
        self._prefix = f"contract.{secrets.token_hex(4)}"
        self._names = itertools.count()
        self._clients: dict[Broker, Wire] = {}

    def queue(self, label: str = "q") -> QueueName:
        return QueueName(f"{self._prefix}.{label}.{next(self._names)}")

    async def open(self) -> Broker:
        wire = Wire(self._port)
        await wire.mend()
        url = f"amqp://guest:guest@127.0.0.1:{wire.port}/%2F"
        settings = RabbitSettings(url=url, kind=self._kind)
        client = await RabbitBroker.connect(settings, random.Random(1))
        self._clients[client] = wire
        return client

    async def crash(self, broker: Broker) -> None:
        await self._clients[broker].cut()

    async def aclose(self) -> None:
        for client, wire in self._clients.items():
            await client.close()
            await wire.cut()


@pytest.fixture
async def sqlite_storage(tmp_path: Path) -> AsyncIterator[SqliteStorage]:
    storage = SqliteStorage(tmp_path)
    yield storage
    await storage.aclose()


@pytest.mark.parametrize("check", [*CHECKS, *ORDER_CHECKS], ids=lambda check: check.__name__)
async def test_sqlite_keeps_the_contract(check: Check, sqlite_storage: SqliteStorage) -> None:
    await check(sqlite_storage)


@pytest.mark.parametrize("check", [*CHECKS, *ORDER_CHECKS], ids=lambda check: check.__name__)
async def test_rabbitmq_keeps_the_contract(check: Check, rabbitmq: RabbitMQ) -> None:
    async with contextlib.aclosing(RabbitStorage(rabbitmq.port, QueueType.CLASSIC)) as storage:
        await check(storage)


@pytest.fixture(scope="module")
def quorum_rabbitmq() -> Iterator[RabbitMQ]:
    """A node of its own: the registry, too, is of one kind per cluster."""
    if reason := missing():
        pytest.skip(reason)
    with running_rabbitmq() as node:
        yield node


@pytest.mark.servers
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_rabbitmq_with_quorum_queues_keeps_the_contract(
    check: Check, quorum_rabbitmq: RabbitMQ
) -> None:
    async with contextlib.aclosing(RabbitStorage(quorum_rabbitmq.port, QueueType.QUORUM)) as storage:
        await check(storage)
