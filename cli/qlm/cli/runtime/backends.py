"""Broker and store as configured: embedded in this process, or RabbitMQ and Redis."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from qlm.broker.rabbitmq.broker import RabbitBroker, RabbitSettings
from qlm.broker.rabbitmq.deployment import RabbitMark
from qlm.broker.sqlite.broker import SqliteQueues
from qlm.broker.sqlite.file import SqliteFile
from qlm.broker.sqlite.journal import SqliteJournal
from qlm.cli.config.errors import ConfigError
from qlm.cli.config.settings import Config
from qlm.cli.deployment.membership import Servers, membership
from qlm.cli.runtime.wiring import new_deployment_id, store_limits
from qlm.domain.ports.broker import Broker
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.store import Store
from qlm.domain.shell.damage import NO_CONSENT, Consent
from qlm.domain.shell.faults import FaultLog
from qlm.domain.shell.outage import Outage
from qlm.store.embedded.store import EmbeddedStore
from qlm.store.redis.store import RedisStore


@dataclass(frozen=True, slots=True)
class Backends:
    """Broker and store as configured.

    Attributes:
        store: The shared state.
        open_broker: Opens a client of the global queue, which the caller closes. Each agent has its own, so
            that its unsettled messages return when it ends.
        embedded: True if both live in this process.
    """

    store: Store
    open_broker: Callable[[], Awaitable[Broker]]
    embedded: bool


async def open_backends(
    config: Config,
    clock: Clock,
    stack: AsyncExitStack,
    faults: FaultLog | None = None,
    consent: Consent = NO_CONSENT,
    outage: Outage | None = None,
) -> Backends:
    """Open broker and store, as a member of their deployment; the stack closes them.

    Args:
        config: The whole configuration.
        clock: The clock.
        stack: Takes what is to be closed.
        faults: The failures of this process.
        consent: Consent to damage of embedded ones.
        outage: Log of the broker's outages.

    Raises:
        DamagedDataError: An embedded file is damaged, and there is no consent to that.
        BrokerUnavailableError: The broker cannot be reached, or its file is in use.
        StoreUnavailableError: The store cannot be reached.
        DeploymentTakenError: Another deployment of this name uses one of them.
        ConfigError: A setting of the store's server breaks promises.
    """
    if config.embedded:
        return await _embedded(config, clock, stack, consent)
    store = RedisStore(config.store, clock, prefix=config.key_prefix, limits=store_limits(config))
    stack.push_async_callback(store.close)
    await store.incarnation()
    if warnings := await store.setting_warnings():
        raise ConfigError("; ".join(warnings))
    settings = _rabbit_settings(config)
    servers = _servers(config, store, settings, stack)
    await stack.enter_async_context(membership(servers, new_deployment_id, faults or FaultLog()))

    async def open_broker() -> Broker:
        return await RabbitBroker.connect(settings, random.Random(), faults, outage)

    return Backends(store, open_broker, embedded=False)


@asynccontextmanager
async def open_servers(config: Config, clock: Clock) -> AsyncIterator[Servers]:
    """Open the two servers of a deployment as bearers of its mark.

    Raises:
        InvalidValueError: An address cannot be read.
    """
    async with AsyncExitStack() as stack:
        store = RedisStore(config.store, clock, prefix=config.key_prefix)
        stack.push_async_callback(store.close)
        yield _servers(config, store, _rabbit_settings(config), stack)


def _servers(config: Config, store: RedisStore, settings: RabbitSettings, stack: AsyncExitStack) -> Servers:
    broker = RabbitMark(settings, random.Random())
    stack.push_async_callback(broker.close)
    return Servers(config.deployment_name, broker, store.mark())


def _rabbit_settings(config: Config) -> RabbitSettings:
    return RabbitSettings(url=config.broker, deployment=config.deployment_name)


async def _embedded(config: Config, clock: Clock, stack: AsyncExitStack, consent: Consent) -> Backends:
    try:
        await asyncio.to_thread(config.data_dir.mkdir, parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"data_dir is {str(config.data_dir)!r}; expected a folder to write to ({why})"
        ) from error
    file = await SqliteFile.open(config.data_dir / "qlm.sqlite", consent)
    stack.push_async_callback(file.close)
    queues = await SqliteQueues.open(file)
    stack.push_async_callback(queues.close)
    store = await EmbeddedStore.open(clock, SqliteJournal(file), store_limits(config), consent=consent)
    stack.push_async_callback(store.close)

    async def open_broker() -> Broker:
        return queues.broker()

    return Backends(store, open_broker, embedded=True)


@asynccontextmanager
async def broker_client(parts: Backends) -> AsyncIterator[Broker]:
    """Open a client of the global queue, and close it after use."""
    broker = await parts.open_broker()
    try:
        yield broker
    finally:
        await broker.close()
