"""Stores in Redis and clients of it, opened for a block of a test."""

import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import redis.asyncio

from contract.suites.store.values import (
    metadata,
)
from qlm.domain.lease import Epoch
from qlm.domain.output import LogEntry
from qlm.store.core.limits import StoreLimits
from qlm.store.redis.store import RedisStore
from support.redis import RedisServer

prefixes = (f"particular-{n}:" for n in itertools.count())


class SystemClock:
    def now_ns(self) -> int:
        return time.time_ns()


class StoppedClock:
    def __init__(self, time_ns: int) -> None:
        self.time_ns = time_ns

    def now_ns(self) -> int:
        return self.time_ns


@asynccontextmanager
async def opened_store(
    server: RedisServer,
    *,
    prefix: str | None = None,
    limits: StoreLimits | None = None,
    reply_timeout_s: float = 5.0,
) -> AsyncIterator[RedisStore]:
    store = RedisStore(
        server.url,
        SystemClock(),
        prefix=prefix or next(prefixes),
        limits=limits,
        reply_timeout_s=reply_timeout_s,
    )
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def opened_client(server: RedisServer) -> AsyncIterator[redis.asyncio.Redis]:
    client = redis.asyncio.Redis.from_url(server.url)
    try:
        yield client
    finally:
        await client.aclose()


def entry_of(n: int, epoch: Epoch, offset: int, *token_ids: int) -> LogEntry:
    return LogEntry(id=metadata(n).id, epoch=epoch, offset=offset, token_ids=token_ids)
