"""The parts that configuration chooses: broker and store, embedded or as servers."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from qlm.broker.rabbitmq import RabbitBroker, RabbitSettings
from qlm.broker.sqlite import SqliteQueues
from qlm.broker.sqlite_file import SqliteFile
from qlm.broker.sqlite_journal import SqliteJournal
from qlm.cli.config import Config
from qlm.cli.config_errors import ConfigError
from qlm.domain.ports.broker import Broker
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.store import Store
from qlm.store.embedded import EmbeddedStore
from qlm.store.redis import RedisStore


@dataclass(frozen=True, slots=True)
class Parts:
    """Broker and store as configured.

    Attributes:
        store: The shared state.
        open_broker: Makes a connection of one holder to the global queue, who closes it; an agent has its
            own, so that what it holds returns when it goes.
        embedded: Whether both live in this process.
    """

    store: Store
    open_broker: Callable[[], Awaitable[Broker]]
    embedded: bool


async def open_parts(config: Config, clock: Clock, stack: AsyncExitStack) -> Parts:
    """Open broker and store; the stack closes them again.

    Raises:
        BrokerUnavailableError: No broker answers, or its file is in use.
        StoreUnavailableError: No store answers.
    """
    if config.embedded:
        return await _embedded(config, clock, stack)
    store = RedisStore(config.store, clock, prefix=config.store_prefix)
    stack.push_async_callback(store.close)
    await store.incarnation()

    async def open_broker() -> Broker:
        return await RabbitBroker.connect(RabbitSettings(url=config.broker), random.Random())

    return Parts(store, open_broker, embedded=False)


async def _embedded(config: Config, clock: Clock, stack: AsyncExitStack) -> Parts:
    try:
        await asyncio.to_thread(config.data_dir.mkdir, parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"data_dir is {str(config.data_dir)!r}; expected a folder to write to ({why})"
        ) from error
    file = await SqliteFile.open(config.data_dir / "qlm.sqlite")
    stack.push_async_callback(file.close)
    queues = await SqliteQueues.open(file)
    stack.push_async_callback(queues.close)
    store = await EmbeddedStore.open(clock, SqliteJournal(file))
    stack.push_async_callback(store.close)

    async def open_broker() -> Broker:
        return queues.broker()

    return Parts(store, open_broker, embedded=True)


@asynccontextmanager
async def broker_of(parts: Parts) -> AsyncIterator[Broker]:
    """Open a connection to the global queue for one holder, and close it after use."""
    broker = await parts.open_broker()
    try:
        yield broker
    finally:
        await broker.close()
