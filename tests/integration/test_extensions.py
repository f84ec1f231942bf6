"""Drawn extensions on every way on which a message is written again, on real brokers and stores."""

import asyncio
import itertools
import random
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings

from qlm.agents.core.side_effects import SideEffect
from qlm.agents.shell.side_effects import SideEffects
from qlm.broker import codec
from qlm.broker.rabbitmq.broker import RabbitBroker, RabbitSettings
from qlm.broker.sqlite.broker import SqliteQueues
from qlm.broker.sqlite.file import SqliteFile
from qlm.broker.sqlite.journal import SqliteJournal
from qlm.broker.topology import DEAD, hold_queue
from qlm.cli.runtime.clock import SystemClock
from qlm.controller.shell.reindex import Reindexer
from qlm.domain.actions import DeadLetter, Demote, ForwardMessage, RenewDelivery, Return
from qlm.domain.formats.extensions import LogExtensions, RequestExtensions
from qlm.domain.ids import InstanceId, ModelId, QueueName, SessionId
from qlm.domain.lease import Holder
from qlm.domain.lease_answer import Granted
from qlm.domain.outcome import Outcome
from qlm.domain.output import LogEntry
from qlm.domain.ports.broker import Broker, Delivery
from qlm.domain.ports.store import Store
from qlm.domain.request import Request
from qlm.domain.shell.faults import FaultLog
from qlm.gateway.sessions.operators.dead_letters import DeadLetterQueue
from qlm.gateway.tokenizers.served_models import ServedModels
from qlm.store.embedded.store import EmbeddedStore
from qlm.store.redis.store import RedisStore
from support.extensions import log_extensions, request_extensions
from support.rabbitmq import RabbitMQ
from support.redis import RedisServer
from support.requests import a_request

HOLDER: Final = Holder(InstanceId("i"), SessionId("s"))
OTHER: Final = Holder(InstanceId("j"), SessionId("s"))

_names = itertools.count()


@dataclass(frozen=True, slots=True)
class World:
    """A broker and a store, and the request that goes through them."""

    broker: Broker
    store: Store
    request: Request

    async def accepted(self) -> None:
        """Publish and index the request, as a gateway does."""
        await self.broker.publish(self.request.cls.queue, codec.encode_request(self.request))
        await self.store.enqueue(self.request.metadata())

    async def taken(self, queue: QueueName) -> Delivery:
        """Take the message from a queue; it has all extensions."""
        (delivery,) = await self.broker.get(queue)
        assert codec.decode_request(delivery.body).extensions == self.request.extensions
        return delivery

    async def leased(self) -> Granted:
        answer = await self.store.lease(self.request.metadata(), HOLDER, None)
        assert isinstance(answer, Granted)
        return answer

    async def done(self, effect: SideEffect) -> None:
        """Carry out an effect of an agent."""
        effects = SideEffects(HOLDER.instance, self.broker, self.store, SystemClock(), FaultLog())
        worker = asyncio.create_task(effects.run())
        effects.put(effect)
        await effects.finished()
        worker.cancel()

    async def ends(self, queue: QueueName) -> None:
        """Take the message a last time, and check the record as well."""
        await self.broker.ack(await self.taken(queue))
        record = await self.store.record(self.request.id)
        assert record is not None and record.metadata.extensions == self.request.extensions


async def return_after_eviction(world: World) -> None:
    delivery, granted = await world.taken(world.request.cls.queue), await world.leased()
    epoch, home = granted.lease.epoch, world.request.cls.queue
    await world.store.park(world.request.id, epoch, "room")
    await world.store.resume(world.request.id, epoch)
    await world.done(Return(id=world.request.id, epoch=epoch, delivery=delivery, home=home, why="drain"))
    await world.ends(home)


async def move_to_a_hold_queue_and_back(world: World) -> None:
    home, hold = world.request.cls.queue, hold_queue(HOLDER.instance)
    await world.done(RenewDelivery(delivery=await world.taken(home)))
    delivery = await world.taken(hold)
    await world.done(Return(id=world.request.id, epoch=None, delivery=delivery, home=home, why="lost"))
    delivery = await world.taken(home)
    await world.done(ForwardMessage(delivery=delivery, holder=OTHER))
    await world.ends(hold_queue(OTHER.instance))


async def demote(world: World) -> None:
    delivery, granted = await world.taken(world.request.cls.queue), await world.leased()
    late = replace(world.request, cls=world.request.cls.missed())
    await world.done(Demote(request=late, epoch=granted.lease.epoch, delivery=delivery, why="late"))
    await world.ends(late.cls.queue)


async def index_where_the_store_has_it(world: World) -> None:
    """The message of an interrupted demotion is written again, for the late class."""
    granted = await world.leased()
    late = replace(world.request, cls=world.request.cls.missed())
    assert await world.store.demote(late.metadata(), granted.lease.epoch, "late")
    await Reindexer(world.broker, world.store, SystemClock()).index(world.request.cls.queue)
    await world.ends(late.cls.queue)


async def empty_the_hold_queue_of_a_dead_instance(world: World) -> None:
    await world.done(RenewDelivery(delivery=await world.taken(world.request.cls.queue)))
    assert await Reindexer(world.broker, world.store, SystemClock()).empty_hold_queues(set()) == 1
    await world.ends(world.request.cls.queue)


async def retry_a_dead_letter(world: World) -> None:
    delivery = await world.taken(world.request.cls.queue)
    await world.done(DeadLetter(delivery=delivery, reason="why"))
    (letter,) = await world.broker.peek(DEAD, codec.decode_dead_letter, 1)
    assert letter.body == delivery.body
    letters = DeadLetterQueue(world.broker, world.store, ServedModels([]))
    await letters.retry(lambda body: world.request.id.encode() in body)
    await world.ends(world.request.cls.queue)


WAYS: Final[tuple[Callable[[World], Awaitable[None]], ...]] = (
    return_after_eviction,
    move_to_a_hold_queue_and_back,
    demote,
    index_where_the_store_has_it,
    empty_the_hold_queue_of_a_dead_instance,
    retry_a_dead_letter,
)


@asynccontextmanager
async def _embedded() -> AsyncIterator[tuple[Broker, Store]]:
    with tempfile.TemporaryDirectory() as folder:
        file = await SqliteFile.open(Path(folder) / "queue.db")
        queues = await SqliteQueues.open(file)
        store = await EmbeddedStore.open(SystemClock(), SqliteJournal(file))
        yield queues.broker(), store
        await store.close()
        await queues.close()
        await file.close()


@asynccontextmanager
async def _servers(rabbitmq: RabbitMQ, redis: RedisServer) -> AsyncIterator[tuple[Broker, Store]]:
    url = f"amqp://guest:guest@127.0.0.1:{rabbitmq.port}/%2F"
    name = f"extensions-{next(_names)}"
    broker = await RabbitBroker.connect(RabbitSettings(url=url, deployment=name), random.Random(1))
    store = RedisStore(redis.url, SystemClock(), prefix=f"{name}:")
    yield broker, store
    await store.close()
    await broker.close()


async def _go_every_way(broker: Broker, store: Store, extensions: RequestExtensions) -> None:
    for n, way in enumerate(WAYS):
        # A model of its own, so that nothing is left of the way before.
        request = a_request(f"r{n}", model=f"m{n}", deadline_ms=1000.0)
        world = World(broker, store, replace(request, extensions=extensions))
        await world.accepted()
        await way(world)


@given(request_extensions)
@settings(max_examples=25, deadline=None)
def test_every_way_keeps_the_extensions_in_the_embedded_queue(extensions: RequestExtensions) -> None:
    async def go() -> None:
        async with _embedded() as (broker, store):
            await _go_every_way(broker, store, extensions)

    asyncio.run(go())


@pytest.mark.servers
@given(extensions=request_extensions)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_way_keeps_the_extensions_on_rabbitmq_and_redis(
    extensions: RequestExtensions, rabbitmq: RabbitMQ, redis_server: RedisServer
) -> None:
    async def go() -> None:
        async with _servers(rabbitmq, redis_server) as (broker, store):
            await _go_every_way(broker, store, extensions)

    asyncio.run(go())


async def _asynchronous_result(store: Store, request: Request, extensions: LogExtensions) -> None:
    await store.enqueue(request.metadata())
    answer = await store.lease(request.metadata(), HOLDER, None)
    assert isinstance(answer, Granted)
    epoch = answer.lease.epoch
    entries = [
        LogEntry(id=request.id, epoch=epoch, offset=0, token_ids=(5,), extensions=extensions),
        LogEntry(id=request.id, epoch=epoch, offset=1, token_ids=(6,), outcome=Outcome.STOP),
    ]
    await store.append(entries)
    await _is_whole(store, request, extensions)


async def _is_whole(store: Store, request: Request, extensions: LogExtensions) -> None:
    record, output = await store.record(request.id), await store.read_output(request.id, 0)
    assert record is not None and output is not None
    assert record.metadata == request.metadata()
    assert (output.token_ids, output.outcome, output.extensions) == ((5, 6), Outcome.STOP, extensions)


@given(request_extensions, log_extensions)
@settings(max_examples=25, deadline=None)
def test_a_stored_result_keeps_its_extensions_over_a_restart(
    of_request: RequestExtensions, of_log: LogExtensions
) -> None:
    request = replace(a_request(), extensions=of_request)

    async def go(folder: Path) -> None:
        for restarted in (False, True):
            file = await SqliteFile.open(folder / "queue.db")
            store = await EmbeddedStore.open(SystemClock(), SqliteJournal(file))
            if restarted:
                await _is_whole(store, request, of_log)
            else:
                await _asynchronous_result(store, request, of_log)
            await store.close()
            await file.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(go(Path(folder)))


@pytest.mark.servers
@given(of_request=request_extensions, of_log=log_extensions)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_stored_result_keeps_its_extensions_in_redis(
    of_request: RequestExtensions, of_log: LogExtensions, redis_server: RedisServer
) -> None:
    async def go() -> None:
        store = RedisStore(redis_server.url, SystemClock(), prefix=f"extensions-{next(_names)}:")
        await _asynchronous_result(store, replace(a_request(), extensions=of_request), of_log)
        await store.close()

    asyncio.run(go())


async def test_a_log_keeps_its_extensions_until_its_message_is_indexed_again(tmp_path: Path) -> None:
    """After a restart the message attaches the log, with its extensions, once."""
    of_log = LogExtensions(render_state="x", render_state_tokens=1)
    request = a_request(model=ModelId("m"))
    for life in range(3):
        file = await SqliteFile.open(tmp_path / "queue.db")
        store = await EmbeddedStore.open(SystemClock(), SqliteJournal(file))
        await store.enqueue(request.metadata())
        answer = await store.lease(request.metadata(), HOLDER, None)
        assert isinstance(answer, Granted)
        epoch = answer.lease.epoch
        if life == 0:
            await store.append(
                [LogEntry(id=request.id, epoch=epoch, offset=0, token_ids=(5,), extensions=of_log)]
            )
        output = await store.read_output(request.id, 0)
        assert output is not None
        assert (output.token_ids, output.extensions) == ((5,), of_log)
        await store.close()
        await file.close()
