"""Broker under test: a SQLite file, and a real RabbitMQ with classic and with quorum queues."""

import itertools
import random
import secrets
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from contract.suites.broker.storage import Storage
from contract.suites.wired import WiredClients
from qlm.broker.rabbitmq.broker import RabbitBroker, RabbitSettings
from qlm.broker.sqlite.broker import SqliteQueues
from qlm.broker.sqlite.file import SqliteFile
from qlm.broker.topology import QueueKind, QueueType
from qlm.cli.processes.remote import RemoteBroker
from qlm.domain.ids import QueueName
from qlm.domain.ports.broker import Broker
from qlm.store.embedded.memory import MemoryStore
from support.gateway import SystemClock
from support.two_processes import linked


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


class ProcessStorage(SqliteStorage):
    """The same file in another process: each client has a link of its own to it, which a crash cuts."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._links: dict[Broker, AsyncExitStack] = {}

    async def open(self) -> Broker:
        link, owned = AsyncExitStack(), await super().open()

        async def open_broker() -> Broker:
            return owned

        calls = await link.enter_async_context(linked(MemoryStore(SystemClock()), open_broker))
        client = RemoteBroker(calls)
        self._links[client] = link
        return client

    async def crash(self, broker: Broker) -> None:
        await self._links[broker].aclose()

    async def aclose(self) -> None:
        for link in self._links.values():
            await link.aclose()
        await super().aclose()


class RabbitStorage:
    """A RabbitMQ node; each client has a wire of its own to it, which a crash cuts."""

    def __init__(self, port: int, kind: QueueType) -> None:
        self._kind = QueueKind(type=kind)
        self._prefix = f"contract.{secrets.token_hex(4)}"
        self._names = itertools.count()
        self._clients = WiredClients[Broker](port)

    def queue(self, label: str = "q") -> QueueName:
        return QueueName(f"{self._prefix}.{label}.{next(self._names)}")

    async def open(self) -> Broker:
        async def connect(url: str) -> Broker:
            settings = RabbitSettings(url=url, kind=self._kind, forget_s=0.2)
            return await RabbitBroker.connect(settings, random.Random(1))

        return await self._clients.connect(connect)

    async def crash(self, broker: Broker) -> None:
        await self._clients.crash(broker)

    async def aclose(self) -> None:
        await self._clients.aclose()


def _open(request: pytest.FixtureRequest, folder: Path) -> SqliteStorage | RabbitStorage:
    match request.param:
        case "sqlite":
            return SqliteStorage(folder)
        case "process":
            return ProcessStorage(folder)
        case "rabbitmq":
            return RabbitStorage(request.getfixturevalue("rabbitmq").port, QueueType.CLASSIC)
        case _:
            return RabbitStorage(request.getfixturevalue("quorum_rabbitmq").port, QueueType.QUORUM)


_ORDERED = ["sqlite", "process", pytest.param("rabbitmq", marks=pytest.mark.servers)]


@pytest.fixture(params=[*_ORDERED, pytest.param("rabbitmq-quorum", marks=pytest.mark.servers)])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Storage]:
    """Storage of each implementation."""
    opened = _open(request, tmp_path)
    yield opened
    await opened.aclose()


@pytest.fixture(params=_ORDERED)
async def ordered_storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Storage]:
    """Storage of each implementation that returns messages to their places in the queue."""
    opened = _open(request, tmp_path)
    yield opened
    await opened.aclose()
