"""The store's contract, on every implementation: in process, with a journal, and in a real Redis."""

import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from qlm.broker.sqlite_file import SqliteFile
from qlm.broker.sqlite_journal import SqliteJournal
from qlm.domain.ports.store import Store
from qlm.store.contract import CHECKS, LIMITS, Check
from qlm.store.contract_values import Subject
from qlm.store.embedded import EmbeddedStore
from qlm.store.memory import MemoryStore
from qlm.store.redis import RedisStore
from support.redis import RedisServer


class SystemClock:
    def now_ns(self) -> int:
        return time.time_ns()


SubjectFactory = Callable[[], AbstractAsyncContextManager[Subject]]
_prefixes = (f"test-{n}:" for n in itertools.count())


@asynccontextmanager
async def _in_process() -> AsyncIterator[Subject]:
    async def another() -> Store:
        return MemoryStore(SystemClock(), LIMITS)

    yield Subject(await another(), another)


@asynccontextmanager
async def _with_a_journal(folder: Path) -> AsyncIterator[Subject]:
    files: list[SqliteFile] = []

    async def another() -> Store:
        files.append(await SqliteFile.open(folder / f"{len(files)}.sqlite"))
        return await EmbeddedStore.open(SystemClock(), SqliteJournal(files[-1]), LIMITS)

    store = await another()
    yield Subject(store, another)
    await store.close()
    for file in files:
        await file.close()


@asynccontextmanager
async def _in_redis(server: RedisServer) -> AsyncIterator[Subject]:
    store = RedisStore(server.url, SystemClock(), prefix=next(_prefixes), limits=LIMITS)

    async def emptied() -> Store:
        server.flush()
        return store

    yield Subject(store, emptied)
    await store.close()


@pytest.fixture
def in_process() -> SubjectFactory:
    return _in_process


@pytest.fixture
def with_a_journal(tmp_path: Path) -> SubjectFactory:
    return partial(_with_a_journal, tmp_path)


@pytest.fixture
def in_redis(redis_server: RedisServer) -> SubjectFactory:
    return partial(_in_redis, redis_server)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_memory_store_keeps_the_contract(check: Check, in_process: SubjectFactory) -> None:
    async with in_process() as subject:
        await check(subject)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_embedded_store_keeps_the_contract(check: Check, with_a_journal: SubjectFactory) -> None:
    async with with_a_journal() as subject:
        await check(subject)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_redis_store_keeps_the_contract(check: Check, in_redis: SubjectFactory) -> None:
    async with in_redis() as subject:
        await check(subject)
