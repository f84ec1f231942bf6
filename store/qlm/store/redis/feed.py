"""Subscriptions over Redis that reconnect."""

import asyncio
import builtins
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final, Generic, TypeVar, cast
from weakref import WeakSet

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError, RedisError

from qlm.domain.errors import StoreUnavailableError, UndecodableDataError
from qlm.domain.shell.tasks import end_tasks
from qlm.store.redis.pipeline import next_response

RETRY_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Pauses between attempts to connect, seconds; the last one repeats."""
BATCH_MAX: Final = 256
"""Messages per batch."""
UNREADABLE_PAUSE_S: Final = 1.0
"""Time between two new beginnings of a reader because of unreadable messages, which may be announcements."""
UNREADABLE_LOGGED_S: Final = 60.0
"""Time between log lines about unreadable messages of one channel."""

log = logging.getLogger("qlm.store")

T = TypeVar("T")


class RedisFeed:
    """Factory of subscriptions, each with its own connection.

    A connection silent for `quiet_max_s` gets a ping; after as long again without a reply it is closed.
    """

    def __init__(self, client: Redis, *, quiet_max_s: float) -> None:
        self._client = client
        self._quiet_max_s = quiet_max_s
        self._open: WeakSet[PubSub] = WeakSet()
        self._closed = False

    async def listen(
        self,
        channel: str,
        read: Callable[[bytes], Iterable[T]],
        standing: Callable[[], Awaitable[Sequence[T]]],
    ) -> AsyncIterator[Sequence[T]]:
        """Iterate over the announcements on a channel, in batches.

        Args:
            channel: Name of the channel.
            read: Decodes one message. One that it cannot read is dropped, and counts as a lost announcement.
            standing: Returns the batch to begin with. Called each time the subscription becomes live, since
                earlier messages are lost.
        """
        failures, reader = 0, MessageReader(channel, read)
        while not self._closed:
            pubsub = self._client.pubsub()
            self._open.add(pubsub)
            try:
                await pubsub.subscribe(channel)
                async with aclosing(_batches(pubsub, self._quiet_max_s)) as batches:
                    async for messages in batches:
                        failures = 0
                        if messages is None:
                            yield await standing()
                            continue
                        if items := [item for message in messages for item in reader.items(message)]:
                            yield items
                        if reader.missed():
                            yield await standing()
            except (RedisError, OSError, StoreUnavailableError, UndecodableDataError):
                if not self._closed:
                    await asyncio.sleep(RETRY_S[min(failures, len(RETRY_S) - 1)])
                failures += 1
            finally:
                await _close(pubsub)

    async def close(self) -> None:
        """End all subscriptions."""
        self._closed = True
        for pubsub in tuple(self._open):
            await _close(pubsub)


class MessageReader(Generic[T]):
    """Decodes the messages of one channel, which anybody could have sent."""

    def __init__(self, channel: str, read: Callable[[bytes], Iterable[T]]) -> None:
        self._channel = channel
        self._read = read
        self._unreadable = 0
        self._missed = False
        self._begin_anew_s = self._log_s = 0.0

    def items(self, message: bytes) -> Iterable[T]:
        """Decode a message; return nothing if it cannot be read."""
        try:
            return self._read(message)
        except Exception as error:  # of whatever kind: one message must not silence all others
            self._missed = True
            self._unreadable += 1
            self._tell(error)
            return ()

    def missed(self) -> bool:
        """Return whether announcements may be lost, and the reader has to begin anew."""
        now_s = asyncio.get_running_loop().time()
        if not self._missed or now_s < self._begin_anew_s:
            return False
        self._missed, self._begin_anew_s = False, now_s + UNREADABLE_PAUSE_S
        return True

    def _tell(self, error: Exception) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._log_s:
            self._log_s = now_s + UNREADABLE_LOGGED_S
            log.warning("%d unreadable messages on %s so far: %s", self._unreadable, self._channel, error)


async def _close(pubsub: PubSub) -> None:
    with suppress(RedisError, OSError):
        await pubsub.aclose()  # type: ignore[no-untyped-call]


async def _batches(pubsub: PubSub, quiet_max_s: float) -> AsyncGenerator[list[bytes] | None]:
    """Gather messages that arrive together; None means that the subscription is live (again)."""
    connection = cast("AbstractConnection | None", pubsub.connection)
    if connection is None:
        raise ConnectionError("the subscription was closed")
    arrived: asyncio.Queue[Any] = asyncio.Queue(BATCH_MAX)
    reader = asyncio.get_running_loop().create_task(_read(connection, arrived))
    try:
        while True:
            data = list[bytes]()
            for response in await _next(pubsub, arrived, quiet_max_s):
                if isinstance(response, Exception):
                    raise response
                kind = response[0] if isinstance(response, list) else None
                if kind == b"message":
                    data.append(response[2])
                elif kind == b"subscribe":
                    yield None
            if data:
                yield data
    finally:
        await end_tasks([reader])


async def _next(pubsub: PubSub, arrived: asyncio.Queue[Any], quiet_max_s: float) -> list[Any]:
    """Wait for responses, and ask for one of a connection that is silent."""
    for pinged in (False, True):
        with suppress(builtins.TimeoutError):
            async with asyncio.timeout(quiet_max_s):
                return [await arrived.get(), *(arrived.get_nowait() for _ in range(arrived.qsize()))]
        if not pinged:
            await pubsub.ping()
    raise ConnectionError(f"no reply to a ping in {quiet_max_s:g} s")


async def _read(connection: AbstractConnection, arrived: asyncio.Queue[Any]) -> None:
    """Pass on responses, and the error that ends them.

    `PubSub.get_message` would set a timer for each message, and another one to learn that it was the last.
    """
    try:
        while True:
            await arrived.put(await next_response(connection, push=True))
    except Exception as error:
        await arrived.put(error)
