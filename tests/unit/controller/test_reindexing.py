"""Reading class queues: what the store lacks is indexed, and what does not belong there moves or goes."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from qlm.broker import codec
from qlm.broker.sqlite.broker import SqliteQueues
from qlm.broker.topology import DEAD, hold_queue
from qlm.controller.shell.reconciler import PERIOD_NS, Reconciler
from qlm.controller.shell.reindex import Reindexer
from qlm.domain.errors import BrokerUnavailableError, DeliveryLostError, StoreUnavailableError
from qlm.domain.ids import QueueName
from qlm.domain.outcome import Outcome
from qlm.domain.output import LogEntry
from qlm.domain.ports.broker import Broker, Delivery
from qlm.domain.request import Request, RequestState
from support.flaky import Faults, flaky
from support.reconciling import GPU_0, GPU_1, ReconcilerBench, reconciler_bench
from support.requests import a_request


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[ReconcilerBench]:
    async with reconciler_bench(tmp_path) as made:
        yield made


TIMELY = a_request(deadline_ms=1000.0)


LATE = replace(TIMELY, cls=TIMELY.cls.missed())


async def test_a_queue_with_more_messages_than_known_is_indexed_when_seen_twice(
    bench: ReconcilerBench,
) -> None:
    request = a_request()
    await bench.publish(request)
    assert not await bench.look(), "a request is published before it is indexed: once is normal"
    assert await bench.state(request) is None
    assert await bench.look()
    assert await bench.state(request) is RequestState.QUEUED
    assert await bench.depth(request.cls.queue) == 1


async def test_a_surplus_that_is_gone_the_next_time_is_not_looked_into(bench: ReconcilerBench) -> None:
    request = a_request()
    await bench.publish(request)
    await bench.look()
    await bench.store.enqueue(request.metadata())
    assert not await bench.look()
    await bench.publish(a_request("r2"))
    assert not await bench.look(), "what was seen once before the pause does not count"


async def test_requests_that_arrive_after_the_view_was_read_are_no_surplus(
    bench: ReconcilerBench, caplog: pytest.LogCaptureFixture
) -> None:
    """At every check, as under steady load: the view does not know the newest one, the queue does."""
    bench.faults.fail(StoreUnavailableError("there is no reason to read the queue"), "get")
    for n in range(60):
        view = await bench.store.view()
        await bench.accept(a_request(f"r{n}", arrival_ns=bench.clock.time_ns))
        bench.clock.time_ns += 2 * PERIOD_NS
        assert not await bench.reconciler.run(view)
    assert not bench.faults.raised
    assert not caplog.records


async def test_a_queue_whose_newest_messages_are_on_their_way_to_the_store_is_rarely_read(
    bench: ReconcilerBench, caplog: pytest.LogCaptureFixture
) -> None:
    """At every check one request is published and not yet indexed: never the same one."""
    reads = 0
    for n in range(60):
        bench.clock.time_ns += 2 * PERIOD_NS
        request = a_request(f"r{n}", arrival_ns=bench.clock.time_ns)
        await bench.publish(request)
        await bench.reconciler.run(await bench.store.view())
        reads += await bench.state(request) is not None
        await bench.store.enqueue(request.metadata())
    assert 1 <= reads <= 7, "twice as rarely each time"
    assert not caplog.records


async def test_cancels_one_by_one_do_not_have_a_long_queue_read_at_every_check(
    bench: ReconcilerBench, caplog: pytest.LogCaptureFixture
) -> None:
    requests = [a_request(f"r{n}", arrival_ns=n) for n in range(800)]
    await bench.accept(*requests)
    await bench.look()
    for request in requests[-5:]:
        await bench.store.cancel(request.id)
        await bench.look()
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"{requests[0].cls.queue}: 0 unknown requests indexed, 2 messages removed"]
    await bench.look_for(24.0)
    assert await bench.depth(requests[0].cls.queue) == 795


async def test_an_unknown_message_is_found_among_those_that_are_on_their_way(
    bench: ReconcilerBench, caplog: pytest.LogCaptureFixture
) -> None:
    lost = a_request("lost")
    await bench.publish(lost)
    for n in range(3):
        bench.clock.time_ns += 2 * PERIOD_NS
        request = a_request(f"r{n}", arrival_ns=bench.clock.time_ns)
        await bench.publish(request)
        await bench.reconciler.run(await bench.store.view())
        await bench.store.enqueue(request.metadata())
    assert await bench.state(lost) is RequestState.QUEUED
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == f"{lost.cls.queue}: 1 unknown requests indexed, 0 messages removed"


async def test_indexing_keeps_the_order_of_the_queue(bench: ReconcilerBench) -> None:
    requests = [a_request(f"r{n}", arrival_ns=n) for n in range(5)]
    for request in requests:
        await bench.publish(request)
    await bench.look()
    await bench.look()
    taken = await bench.broker.get(requests[0].cls.queue, 10)
    assert [codec.decode_request(each.body).id for each in taken] == ["r0", "r1", "r2", "r3", "r4"]


async def test_the_message_of_an_ended_request_is_deleted(bench: ReconcilerBench) -> None:
    request = a_request()
    await bench.beat(GPU_0)
    granted = await bench.lease(request, GPU_0)
    entry = LogEntry(id=request.id, epoch=granted.lease.epoch, offset=0, outcome=Outcome.STOP)
    await bench.store.append([entry])
    await bench.publish(request)
    await bench.look(GPU_0)
    await bench.look(GPU_0)
    assert await bench.depth(request.cls.queue) == 0
    record = await bench.store.record(request.id)
    assert record is not None
    assert record.outcome is Outcome.STOP


async def test_the_message_of_a_running_request_goes_to_its_holder(bench: ReconcilerBench) -> None:
    request = a_request()
    await bench.beat(GPU_0)
    await bench.lease(request, GPU_0)
    await bench.publish(request)
    await bench.look(GPU_0)
    await bench.look(GPU_0)
    assert await bench.depth(request.cls.queue) == 0
    assert await bench.depth(hold_queue(GPU_0.instance)) == 1
    assert await bench.state(request) is RequestState.RUNNING


@pytest.mark.parametrize(
    ("message", "lies_in", "waiting"), [(TIMELY, TIMELY, LATE), (LATE, LATE, TIMELY), (LATE, TIMELY, LATE)]
)
async def test_a_message_in_another_queue_than_its_request_waits_in_moves_there(
    bench: ReconcilerBench, message: Request, lies_in: Request, waiting: Request
) -> None:
    """An interrupted demotion may leave any of these; no agent would look for the message there."""
    await bench.publish(message, lies_in.cls.queue)
    await bench.store.enqueue(waiting.metadata())
    await bench.look()
    await bench.look()
    assert await bench.depth(lies_in.cls.queue) == 0
    (moved,) = await bench.broker.get(waiting.cls.queue, 10)
    assert codec.decode_request(moved.body) == waiting


async def test_a_message_of_another_model_than_its_id_is_known_with_stays(bench: ReconcilerBench) -> None:
    message = a_request(model="other")
    await bench.store.enqueue(a_request(model="m").metadata())
    await bench.publish(message)
    await bench.look()
    await bench.look()
    assert await bench.depth(message.cls.queue) == 1


async def test_a_second_message_of_a_waiting_request_is_deleted_and_the_queue_left_alone(
    bench: ReconcilerBench,
) -> None:
    requests = [a_request(f"r{n}", arrival_ns=n) for n in range(3)]
    await bench.accept(*requests)
    await bench.publish(requests[0])
    await bench.look()
    await bench.look()
    bench.faults.fail(StoreUnavailableError("must not be read again"), "get")
    await bench.look()
    await bench.look()
    assert not bench.faults.raised
    taken = await bench.broker.get(requests[0].cls.queue, 10)
    assert [codec.decode_request(each.body).id for each in taken] == ["r0", "r1", "r2"]


async def test_an_unreadable_message_in_a_class_queue_becomes_a_dead_letter(bench: ReconcilerBench) -> None:
    request = a_request()
    await bench.publish(request)
    await bench.broker.publish(request.cls.queue, b"\x00")
    await bench.look()
    await bench.look()
    (dead,) = await bench.broker.get(DEAD)
    letter = codec.decode_dead_letter(dead.body)
    assert (letter.queue, letter.body) == (request.cls.queue, b"\x00")
    assert await bench.state(request) is RequestState.QUEUED


async def test_a_store_that_goes_away_while_indexing_loses_no_message(bench: ReconcilerBench) -> None:
    requests = [a_request(f"r{n}") for n in range(3)]
    for request in requests:
        await bench.publish(request)
    await bench.look()
    store_faults = Faults()
    store_faults.fail(StoreUnavailableError("away"), "enqueue")
    whole = bench.store
    bench.reconciler = Reconciler(
        broker=bench.own_broker, store=flaky(whole, store_faults), clock=bench.clock
    )
    await bench.look()
    with pytest.raises(StoreUnavailableError):
        await bench.look()
    assert await bench.depth(requests[0].cls.queue) == 3
    store_faults.heal()
    await bench.look()
    await bench.look()
    assert [await bench.state(request) for request in requests] == [RequestState.QUEUED] * 3


@pytest.mark.parametrize("hold", [False, True])
async def test_deliveries_lost_while_reading_a_queue_do_not_stop_the_controller(
    bench: ReconcilerBench, hold: bool
) -> None:
    """A connection that breaks in the middle gives everything back by itself."""
    request = a_request()
    queue = hold_queue(GPU_0.instance) if hold else request.cls.queue
    await bench.publish(request, queue)
    bench.faults.fail(DeliveryLostError("its channel is gone"), "requeue", "ack")
    await bench.look(GPU_1)
    await bench.look(GPU_1)
    assert bench.faults.raised
    bench.faults.heal()
    await bench.own_broker.close()
    bench.own_broker = bench.queues.broker()
    bench.reconciler = bench.new_reconciler()
    await bench.look(GPU_1)
    await bench.look(GPU_1)
    assert await bench.state(request) is RequestState.QUEUED
    assert await bench.depth(request.cls.queue) >= 1


class Reconnecting:
    """A broker whose connection breaks when it has handed out messages: they come again on a new one."""

    def __init__(self, queues: SqliteQueues) -> None:
        self._first, self._second = queues.broker(), queues.broker()
        self._ours = list[Delivery]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._second, name)

    async def get(self, queue: QueueName, limit: int = 1) -> Sequence[Delivery]:
        if self._ours:
            return await self._second.get(queue, limit)
        self._ours += await self._first.get(queue, limit)
        await self._first.close()
        return self._ours

    async def ack(self, delivery: Delivery) -> None:
        await self._of(delivery).ack(delivery)

    async def requeue(self, delivery: Delivery) -> None:
        await self._of(delivery).requeue(delivery)

    def _of(self, delivery: Delivery) -> Broker:
        return self._first if any(delivery is each for each in self._ours) else self._second


async def test_messages_that_come_again_on_a_new_connection_while_a_queue_is_read_are_kept(
    bench: ReconcilerBench,
) -> None:
    """The second delivery is the message itself, of which the first is no duplicate any more."""
    requests = [a_request(f"r{n}") for n in range(3)]
    await bench.accept(*requests)
    queue = requests[0].cls.queue
    read = await Reindexer(cast(Broker, Reconnecting(bench.queues)), bench.store, bench.clock).index(queue)
    assert read.ids == {request.id for request in requests}
    bodies = [codec.decode_request(each.body).id for each in await bench.broker.get(queue, 10)]
    assert bodies == [request.id for request in requests]


@pytest.mark.parametrize("hold", [False, True])
async def test_a_message_that_cannot_be_returned_keeps_no_other_from_its_queue(
    bench: ReconcilerBench, monkeypatch: pytest.MonkeyPatch, hold: bool
) -> None:
    requests = [a_request(f"r{n}") for n in range(5)]
    queue = hold_queue(GPU_0.instance) if hold else requests[0].cls.queue
    for request in requests:
        await bench.publish(request, queue)
    returned, requeue = 0, bench.own_broker.requeue

    async def fail_once(delivery: Delivery) -> None:
        nonlocal returned
        returned += 1
        if returned == 1:
            raise ZeroDivisionError("a bug")
        await requeue(delivery)

    monkeypatch.setattr(bench.own_broker, "requeue", fail_once)
    if hold:  # none can be moved, so that all are returned
        bench.faults.fail(BrokerUnavailableError("away"), "publish")
    bench.reconciler = bench.new_reconciler()
    with pytest.raises(ZeroDivisionError):
        for _ in range(3):
            await bench.look(GPU_1)
    assert await bench.depth(queue) == len(requests) - 1


async def test_a_message_moves_to_the_class_in_which_its_request_waits(bench: ReconcilerBench) -> None:
    """A retry through another gateway may have got another class."""
    request = a_request()
    retried = replace(request, cls=replace(request.cls, slo="deadline-1s", target_ms=1000.0))
    await bench.publish(request)
    await bench.store.enqueue(retried.metadata())
    for _ in range(2):
        await bench.look(GPU_0)
    assert await bench.depth(request.cls.queue) == 0
    (delivery,) = await bench.broker.get(retried.cls.queue)
    assert codec.decode_request(delivery.body) == retried
