"""Store under test: in memory, journaled in SQLite, of another process, and in Redis."""

import itertools
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from contract.suites.store.values import LIMITS, Subject
from qlm.broker.sqlite.file import SqliteFile
from qlm.broker.sqlite.journal import SqliteJournal
from qlm.cli.processes.remote import remote_store
from qlm.domain.ports.broker import Broker
from qlm.domain.ports.store import Store
from qlm.store.embedded.memory import MemoryStore
from qlm.store.embedded.store import EmbeddedStore
from qlm.store.redis.store import RedisStore
from support.redis import RedisServer
from support.two_processes import linked

_prefixes = (f"test-{n}:" for n in itertools.count())


class SystemClock:
    def now_ns(self) -> int:
        return time.time_ns()


async def _memory() -> AsyncIterator[Subject]:
    async def another() -> Store:
        return MemoryStore(SystemClock(), LIMITS)

    yield Subject(await another(), another)


async def _sqlite(folder: Path) -> AsyncIterator[Subject]:
    files: list[SqliteFile] = []

    async def another() -> Store:
        files.append(await SqliteFile.open(folder / f"{len(files)}.sqlite"))
        return await EmbeddedStore.open(SystemClock(), SqliteJournal(files[-1]), LIMITS)

    store = await another()
    yield Subject(store, another)
    await store.close()
    for file in files:
        await file.close()


async def _process() -> AsyncIterator[Subject]:
    async with AsyncExitStack() as stack:

        async def no_broker() -> Broker:
            raise AssertionError("the store's contract needs no broker")

        async def another() -> Store:
            owned = MemoryStore(SystemClock(), LIMITS)
            return remote_store(await stack.enter_async_context(linked(owned, no_broker)))

        yield Subject(await another(), another)


async def _redis(server: RedisServer) -> AsyncIterator[Subject]:
    store = RedisStore(server.url, SystemClock(), prefix=next(_prefixes), limits=LIMITS)

    async def emptied() -> Store:
        server.flush()
        return store

    yield Subject(store, emptied)
    await store.close()


@pytest.fixture(params=["memory", "sqlite", "process", pytest.param("redis", marks=pytest.mark.servers)])
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    """An empty store of each implementation, with `LIMITS`."""
    match request.param:
        case "memory":
            subjects = _memory()
        case "sqlite":
            subjects = _sqlite(tmp_path)
        case "process":
            subjects = _process()
        case _:
            subjects = _redis(request.getfixturevalue("redis_server"))
    async for each in subjects:
        yield each
