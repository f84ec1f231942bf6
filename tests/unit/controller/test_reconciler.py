"""The controller's repairs on a real store and a real queue: what died leaves nothing behind."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from qlm.broker import codec
from qlm.broker.sqlite.broker import SqliteQueues
from qlm.broker.sqlite.file import SqliteFile
from qlm.broker.topology import DEAD, hold_queue
from qlm.controller.shell.idle_queues import IDLE_NS
from qlm.controller.shell.missing_messages import AGAIN_NS, DETAIL, STUCK_NS, MissingMessages
from qlm.controller.shell.reconciler import EMPTIED_GRACE_NS, PERIOD_NS, Reconciler
from qlm.controller.shell.reindex import Reading, Reindexer
from qlm.domain.errors import BrokerUnavailableError, DeliveryLostError, StoreUnavailableError
from qlm.domain.fleet import InstanceStatus, ModelSpec
from qlm.domain.ids import ControllerId, InstanceId, QueueName, SessionId
from qlm.domain.leadership import Term
from qlm.domain.lease import Holder
from qlm.domain.lease_answer import Granted
from qlm.domain.outcome import Outcome
from qlm.domain.output import LogEntry
from qlm.domain.ports.broker import UNHEARD_MAX_S, Broker, Delivery
from qlm.domain.request import Request, RequestState
from qlm.gateway.sessions.dead_letters import DeadLetterQueue
from qlm.gateway.tokenizers.served_models import ServedModels
from qlm.store.embedded.memory import MemoryStore
from support.flaky import Faults, flaky
from support.requests import a_request

GPU_0, GPU_1 = Holder(InstanceId("gpu-0"), SessionId("a")), Holder(InstanceId("gpu-1"), SessionId("b"))


class SettableClock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.time_ns = 1_000_000_000_000

    def now_ns(self) -> int:
        return self.time_ns


@dataclass
class Bench:
    """A reconciler on real parts; faults come between the broker and the reconciler alone."""

    queues: SqliteQueues
    clock: SettableClock = field(default_factory=SettableClock)
    faults: Faults = field(default_factory=Faults)

    def __post_init__(self) -> None:
        self.broker: Broker = self.queues.broker()
        self.own_broker: Broker = self.queues.broker()
        self.store = MemoryStore(self.clock)
        self.reconciler = self.new_reconciler()

    def new_reconciler(self) -> Reconciler:
        return Reconciler(broker=flaky(self.own_broker, self.faults), store=self.store, clock=self.clock)

    async def beat(self, *holders: Holder) -> None:
        for holder in holders:
            await self.store.heartbeat(InstanceStatus(holder=holder, accelerator="A10", models=()), 3.5)

    async def publish(self, request: Request, queue: QueueName | None = None) -> None:
        await self.broker.publish(queue or request.cls.queue, codec.encode_request(request))

    async def accept(self, *requests: Request) -> None:
        for request in requests:
            await self.publish(request)
            await self.store.enqueue(request.metadata())

    async def lease(self, request: Request, holder: Holder) -> Granted:
        answer = await self.store.lease(request.metadata(), holder, None)
        assert isinstance(answer, Granted)
        return answer

    async def look(self, *alive: Holder) -> bool:
        """Run once, a period later, with these holders alive."""
        self.clock.time_ns += 2 * PERIOD_NS
        await self.beat(*alive)
        return await self.reconciler.run(await self.store.view())

    async def depth(self, queue: QueueName) -> int:
        return await self.broker.depth(queue)

    async def state(self, request: Request) -> RequestState | None:
        record = await self.store.record(request.id)
        return record.state if record else None


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    file = await SqliteFile.open(tmp_path / "queue.db")
    queues = await SqliteQueues.open(file)
    yield Bench(queues)
    await queues.close()
    await file.close()


async def test_what_a_dead_holder_leased_waits_again(bench: Bench) -> None:
    request = a_request()
    await bench.beat(GPU_0)
    await bench.lease(request, GPU_0)
    assert not await bench.look(GPU_0)
    assert await bench.state(request) is RequestState.RUNNING
    assert await bench.look(GPU_1)
    assert await bench.state(request) is RequestState.QUEUED


async def test_a_lost_instance_is_named_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "qlm.controller")
    requests = [a_request(f"r{n}") for n in range(2)]
    await bench.accept(*requests)
    await bench.beat(GPU_0, GPU_1)
    for request in requests:
        await bench.lease(request, GPU_0)
    await bench.reconciler.run(await bench.store.view())
    for _ in range(3):
        bench.clock.time_ns += 4_000_000_000
        await bench.beat(GPU_1)
        await bench.reconciler.run(await bench.store.view())
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["gone: gpu-0", "lost instances (gpu-0): 2 requests wait again, 0 messages moved"]


async def test_a_new_life_of_an_instance_does_not_keep_the_leases_of_the_former(bench: Bench) -> None:
    request = a_request()
    await bench.beat(GPU_0)
    await bench.lease(request, GPU_0)
    await bench.look(GPU_0)
    assert await bench.look(Holder(GPU_0.instance, SessionId("next")))
    assert await bench.state(request) is RequestState.QUEUED


async def test_the_hold_queue_of_a_dead_instance_is_emptied_into_the_class_queue(bench: Bench) -> None:
    request, alive = a_request("dead"), a_request("alive")
    await bench.publish(request, hold_queue(GPU_0.instance))
    await bench.publish(alive, hold_queue(GPU_1.instance))
    assert await bench.look(GPU_1)
    assert await bench.depth(hold_queue(GPU_0.instance)) == 0
    assert await bench.depth(hold_queue(GPU_1.instance)) == 1, "a live instance empties its own"
    assert await bench.depth(request.cls.queue) == 1
    assert await bench.state(request) is RequestState.QUEUED


async def test_an_unreadable_message_in_a_dead_instances_hold_queue_becomes_a_dead_letter(
    bench: Bench,
) -> None:
    await bench.broker.publish(hold_queue(GPU_0.instance), b"{}")
    await bench.look()
    assert await bench.depth(DEAD) == 1
    assert await bench.depth(hold_queue(GPU_0.instance)) == 0


async def test_a_queue_with_more_messages_than_known_is_indexed_when_seen_twice(bench: Bench) -> None:
    request = a_request()
    await bench.publish(request)
    assert not await bench.look(), "a request is published before it is indexed: once is normal"
    assert await bench.state(request) is None
    assert await bench.look()
    assert await bench.state(request) is RequestState.QUEUED
    assert await bench.depth(request.cls.queue) == 1


async def test_a_surplus_that_is_gone_the_next_time_is_not_looked_into(bench: Bench) -> None:
    request = a_request()
    await bench.publish(request)
    await bench.look()
    await bench.store.enqueue(request.metadata())
    assert not await bench.look()
    await bench.publish(a_request("r2"))
    assert not await bench.look(), "what was seen once before the pause does not count"


async def test_requests_that_arrive_after_the_view_was_read_are_no_surplus(
    bench: Bench, caplog: pytest.LogCaptureFixture
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
    bench: Bench, caplog: pytest.LogCaptureFixture
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


async def test_an_unknown_message_is_found_among_those_that_are_on_their_way(
    bench: Bench, caplog: pytest.LogCaptureFixture
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


async def test_indexing_keeps_the_order_of_the_queue(bench: Bench) -> None:
    requests = [a_request(f"r{n}", arrival_ns=n) for n in range(5)]
    for request in requests:
        await bench.publish(request)
    await bench.look()
    await bench.look()
    taken = await bench.broker.get(requests[0].cls.queue, 10)
    assert [codec.decode_request(each.body).id for each in taken] == ["r0", "r1", "r2", "r3", "r4"]


async def test_the_message_of_an_ended_request_is_deleted(bench: Bench) -> None:
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


async def test_the_message_of_a_running_request_goes_to_its_holder(bench: Bench) -> None:
    request = a_request()
    await bench.beat(GPU_0)
    await bench.lease(request, GPU_0)
    await bench.publish(request)
    await bench.look(GPU_0)
    await bench.look(GPU_0)
    assert await bench.depth(request.cls.queue) == 0
    assert await bench.depth(hold_queue(GPU_0.instance)) == 1
    assert await bench.state(request) is RequestState.RUNNING


TIMELY = a_request(deadline_ms=1000.0)
LATE = replace(TIMELY, cls=TIMELY.cls.missed())


@pytest.mark.parametrize(
    ("message", "lies_in", "waiting"), [(TIMELY, TIMELY, LATE), (LATE, LATE, TIMELY), (LATE, TIMELY, LATE)]
)
async def test_a_message_in_another_queue_than_its_request_waits_in_moves_there(
    bench: Bench, message: Request, lies_in: Request, waiting: Request
) -> None:
    """An interrupted demotion may leave any of these; no agent would look for the message there."""
    await bench.publish(message, lies_in.cls.queue)
    await bench.store.enqueue(waiting.metadata())
    await bench.look()
    await bench.look()
    assert await bench.depth(lies_in.cls.queue) == 0
    (moved,) = await bench.broker.get(waiting.cls.queue, 10)
    assert codec.decode_request(moved.body) == waiting


async def test_what_a_dead_instance_held_back_goes_to_the_class_in_which_it_waits(bench: Bench) -> None:
    await bench.publish(TIMELY, hold_queue(GPU_0.instance))
    await bench.store.enqueue(LATE.metadata())
    await bench.look()
    assert await bench.depth(TIMELY.cls.queue) == 0
    (moved,) = await bench.broker.get(LATE.cls.queue, 10)
    assert codec.decode_request(moved.body) == LATE


async def test_a_message_of_another_model_than_its_id_is_known_with_stays(bench: Bench) -> None:
    message = a_request(model="other")
    await bench.store.enqueue(a_request(model="m").metadata())
    await bench.publish(message)
    await bench.look()
    await bench.look()
    assert await bench.depth(message.cls.queue) == 1


async def test_a_second_message_of_a_waiting_request_is_deleted_and_the_queue_left_alone(
    bench: Bench,
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


async def test_an_unreadable_message_in_a_class_queue_becomes_a_dead_letter(bench: Bench) -> None:
    request = a_request()
    await bench.publish(request)
    await bench.broker.publish(request.cls.queue, b"\x00")
    await bench.look()
    await bench.look()
    (dead,) = await bench.broker.get(DEAD)
    letter = codec.decode_dead_letter(dead.body)
    assert (letter.queue, letter.body) == (request.cls.queue, b"\x00")
    assert await bench.state(request) is RequestState.QUEUED


async def test_an_emptied_store_is_rebuilt_from_the_queue(bench: Bench) -> None:
    requests = [a_request(f"r{n}", model=("m", "n")[n % 2]) for n in range(6)]
    await bench.accept(*requests)
    await bench.look(GPU_0)
    bench.store = MemoryStore(bench.clock)
    bench.reconciler = bench.new_reconciler()
    await bench.look(GPU_0)
    assert await bench.look(GPU_0)
    assert [await bench.state(request) for request in requests] == [RequestState.QUEUED] * 6
    view = await bench.store.view()
    assert sorted((cls.cls.model, cls.queued) for cls in view.classes) == [("m", 3), ("n", 3)]


async def test_between_two_periods_nothing_is_looked_at(bench: Bench) -> None:
    await bench.look(GPU_0)
    bench.faults.fail(StoreUnavailableError("must not be asked"), "queues", "depth", "get")
    assert not await bench.reconciler.run(await bench.store.view())
    assert not bench.faults.raised


async def test_an_instance_that_comes_or_goes_is_looked_after_at_once(bench: Bench) -> None:
    await bench.look(GPU_0)
    await bench.publish(a_request(), hold_queue(GPU_0.instance))
    await bench.store.leave(GPU_0)
    assert await bench.reconciler.run(await bench.store.view()), "no period has passed, but gpu-0 is gone"
    assert await bench.depth(a_request().cls.queue) == 1


async def test_a_store_that_goes_away_while_indexing_loses_no_message(bench: Bench) -> None:
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
    bench: Bench, hold: bool
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
    bench: Bench,
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
    bench: Bench, monkeypatch: pytest.MonkeyPatch, hold: bool
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


async def emptied(bench: Bench) -> Term:
    """Let the store lose everything under a reconciler that leads; return its term in what follows."""
    bench.clock.time_ns += 1
    bench.store = MemoryStore(bench.clock)
    bench.reconciler = bench.new_reconciler()
    return (await bench.store.acquire_leadership(ControllerId("c"), 3600)).term


async def test_an_emptied_store_is_filled_from_the_queues_at_the_first_look(bench: Bench) -> None:
    request = a_request()
    await bench.accept(request)
    term = await emptied(bench)
    assert await bench.reconciler.run(await bench.store.view(), term)
    assert await bench.state(request) is RequestState.QUEUED


async def test_what_runs_is_not_taken_from_an_instance_that_an_emptied_store_has_not_heard_of(
    bench: Bench,
) -> None:
    request = a_request()
    term = await emptied(bench)
    await bench.store.reregister(request.metadata(), GPU_0, ())
    await bench.publish(request, hold_queue(GPU_0.instance))
    await bench.reconciler.run(await bench.store.view(), term)
    assert await bench.state(request) is RequestState.RUNNING
    assert await bench.depth(hold_queue(GPU_0.instance)) == 1
    bench.clock.time_ns += EMPTIED_GRACE_NS
    assert await bench.reconciler.run(await bench.store.view(), term), "it stays silent"
    assert await bench.state(request) is RequestState.QUEUED
    assert await bench.depth(hold_queue(GPU_0.instance)) == 0


async def test_an_empty_store_is_marked_once_all_queues_are_read(bench: Bench) -> None:
    """Also what comes back to a queue, or is found in the hands of the dead, while the store is young."""
    first, returned, leased = (a_request(id) for id in ("first", "returned", "leased"))
    await bench.accept(first)
    await bench.publish(leased, hold_queue(GPU_0.instance))
    term = await emptied(bench)
    await bench.reconciler.run(await bench.store.view(), term)
    assert not await bench.store.indexed(), "live instances have not had the time to say what they run"
    await bench.publish(returned)
    bench.clock.time_ns += EMPTIED_GRACE_NS
    await bench.reconciler.run(await bench.store.view(), term)
    assert await bench.store.indexed()
    assert [await bench.state(each) for each in (first, returned, leased)] == [RequestState.QUEUED] * 3


async def test_a_store_that_is_marked_is_not_filled_again_by_who_takes_over(bench: Bench) -> None:
    await bench.accept(a_request())
    await bench.store.mark_indexed((await bench.store.acquire_leadership(ControllerId("former"), 1.0)).term)
    bench.clock.time_ns += PERIOD_NS
    term = (await bench.store.acquire_leadership(ControllerId("c"), 3600)).term
    bench.faults.fail(BrokerUnavailableError("must not be read again"), "get")
    await bench.reconciler.run(await bench.store.view(), term)
    assert not bench.faults.raised


async def test_a_broker_that_is_away_while_an_empty_store_is_filled_is_asked_again(bench: Bench) -> None:
    request = a_request()
    await bench.accept(request)
    term = await emptied(bench)
    bench.faults.fail(BrokerUnavailableError("away"), "get")
    with pytest.raises(BrokerUnavailableError):
        await bench.reconciler.run(await bench.store.view(), term)
    bench.clock.time_ns += EMPTIED_GRACE_NS
    with pytest.raises(BrokerUnavailableError):
        await bench.reconciler.run(await bench.store.view(), term)
    assert not await bench.store.indexed()
    bench.faults.heal()
    bench.clock.time_ns += PERIOD_NS
    await bench.reconciler.run(await bench.store.view(), term)
    assert await bench.store.indexed()
    assert await bench.state(request) is RequestState.QUEUED


async def test_the_queue_of_a_class_is_deleted_once_it_is_idle(bench: Bench) -> None:
    """So are those of classes that only an earlier version made."""
    request = a_request()
    await bench.accept(request)
    queue = request.cls.queue
    for _ in range(IDLE_NS // PERIOD_NS):
        await bench.look(GPU_0)
    assert queue in await bench.broker.queues(), "its request waits"
    (delivery,) = await bench.broker.get(queue)
    granted = await bench.lease(request, GPU_0)
    for _ in range(IDLE_NS // PERIOD_NS):
        await bench.look(GPU_0)
    assert queue in await bench.broker.queues(), "its message is with an agent"
    entry = LogEntry(id=request.id, epoch=granted.lease.epoch, offset=0, token_ids=(1,), outcome=Outcome.STOP)
    await bench.store.append([entry])
    await bench.broker.ack(delivery)
    for _ in range(IDLE_NS // PERIOD_NS):
        await bench.look(GPU_0)
    assert queue not in await bench.broker.queues()
    await bench.accept(another := a_request("r2"))
    await bench.look(GPU_0)
    assert await bench.depth(queue) == 1
    assert await bench.state(another) is RequestState.QUEUED


@pytest.mark.parametrize("unheard", [False, True])
@pytest.mark.parametrize("error", [BrokerUnavailableError("away"), ZeroDivisionError("a bug")])
async def test_a_deletion_of_idle_queues_that_fails_costs_one_run_and_no_message(
    bench: Bench, error: Exception, unheard: bool
) -> None:
    queue = a_request().cls.queue
    await bench.broker.publish(queue, b"")
    (delivery,) = await bench.broker.get(queue)
    await bench.broker.ack(delivery)
    (bench.faults.fail_unheard if unheard else bench.faults.fail)(error, "delete_unused")
    with pytest.raises(type(error)):
        await look_for(bench, 2 * IDLE_NS / 1e9, GPU_0)
    assert not await bench.look(GPU_0), "the run after it"
    bench.faults.heal()
    await bench.accept(request := a_request("r2"))
    await look_for(bench, 2 * IDLE_NS / 1e9, GPU_0)
    assert await bench.depth(queue) == 1
    assert await bench.state(request) is RequestState.QUEUED


async def test_a_message_moves_to_the_class_in_which_its_request_waits(bench: Bench) -> None:
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


async def look_for(bench: Bench, seconds: float, *alive: Holder) -> None:
    until_ns = bench.clock.time_ns + round(seconds * 1e9)
    while bench.clock.time_ns < until_ns:
        await bench.look(*alive)


async def purge(bench: Bench, queue: QueueName) -> None:
    while taken := await bench.broker.get(queue):
        await bench.broker.ack(taken[0])


async def test_a_request_whose_message_is_gone_ends_as_lost(bench: Bench) -> None:
    """Its client waited for ever, and its group stayed at the head of a virtual queue."""
    requests = [a_request(f"r{n}", arrival_ns=n) for n in range(3)]
    await bench.accept(*requests)
    await purge(bench, requests[0].cls.queue)
    await look_for(bench, STUCK_NS / 1e9)
    assert [await bench.state(each) for each in requests] == [RequestState.QUEUED] * 3
    await look_for(bench, (STUCK_NS + AGAIN_NS) / 1e9)
    for each in requests:
        log = await bench.store.read_output(each.id, 0)
        assert log is not None and (log.outcome, log.detail) == (Outcome.OUTPUT_LOST, DETAIL)


@pytest.mark.parametrize("operation", ["end_waiting", "bring_back"])
async def test_a_failure_makes_no_request_end_sooner_and_none_much_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    request, index, read_at_ns = a_request("r"), Reindexer.index, list[int]()
    await bench.store.enqueue(request.metadata())

    async def noted(reindexer: Reindexer, queue: QueueName) -> Reading:
        read_at_ns.append(bench.clock.time_ns)
        return await index(reindexer, queue)

    async def fail(*arguments: object) -> NoReturn:
        raise StoreUnavailableError("away")

    monkeypatch.setattr(Reindexer, "index", noted)
    part = {"end_waiting": MemoryStore, "bring_back": MissingMessages}
    name = "_bring_back" if operation == "bring_back" else operation
    with monkeypatch.context() as patch:
        patch.setattr(part[operation], name, fail)
        with pytest.raises(StoreUnavailableError):
            await look_for(bench, 100, GPU_0)
    failed_at_ns = bench.clock.time_ns
    while await bench.state(request) is RequestState.QUEUED:
        await bench.look(GPU_0)
    assert bench.clock.time_ns - read_at_ns[0] >= AGAIN_NS
    if operation == "end_waiting":
        assert bench.clock.time_ns - failed_at_ns <= 2 * PERIOD_NS


async def test_a_missing_message_is_found_in_a_class_that_goes_on_without_it(bench: Bench) -> None:
    """The queue is never empty, but others of the class are served and the oldest is not."""
    gone, *others = (a_request(f"r{n}", arrival_ns=n) for n in range(40))
    await bench.store.enqueue(gone.metadata())
    await bench.accept(*others)
    served = iter(others)
    for _ in range(6):
        await bench.look(GPU_0)
        (message,) = await bench.broker.get(gone.cls.queue)
        await bench.lease(next(served), GPU_0)
        await bench.broker.ack(message)
    for _ in range(4):
        await bench.look(GPU_0)
    assert await bench.state(gone) is RequestState.ENDED
    assert {await bench.state(each) for each in served} == {RequestState.QUEUED}
    assert await bench.depth(gone.cls.queue) == 39 - 6


async def test_requests_whose_messages_wait_do_not_end_however_long_they_wait(bench: Bench) -> None:
    requests = [a_request(f"r{n}", arrival_ns=n) for n in range(3)]
    await bench.accept(*requests)
    await look_for(bench, 100)
    assert {await bench.state(each) for each in requests} == {RequestState.QUEUED}
    assert await bench.depth(requests[0].cls.queue) == 3


async def test_a_message_between_pull_and_lease_is_not_missing(bench: Bench) -> None:
    """An agent holds it while the queue is read, and leases or returns it before that is read again."""
    request = a_request("r")
    await bench.accept(request)
    (message,) = await bench.broker.get(request.cls.queue)
    await look_for(bench, (STUCK_NS + AGAIN_NS / 2) / 1e9, GPU_0)
    await bench.broker.requeue(message)
    await look_for(bench, 60, GPU_0)
    assert await bench.state(request) is RequestState.QUEUED


@pytest.mark.parametrize("taken_after_s", range(0, 40, 2))
async def test_a_message_that_a_stopped_process_has_is_not_missing(bench: Bench, taken_after_s: int) -> None:
    """The broker returns it when it has not heard of the process for long enough."""
    request = a_request("r")
    await bench.accept(request)
    await look_for(bench, taken_after_s, GPU_0)
    (message,) = await bench.broker.get(request.cls.queue)
    await look_for(bench, UNHEARD_MAX_S, GPU_0)
    await bench.broker.requeue(message)
    await look_for(bench, 60, GPU_0)
    assert await bench.state(request) is RequestState.QUEUED


async def test_a_message_in_the_queue_of_another_class_is_not_missing(bench: Bench) -> None:
    """An interrupted demotion leaves it in the queue of the former class."""
    request = a_request("r")
    late = replace(request, cls=replace(request.cls, late=True))
    await bench.publish(request)
    await bench.store.enqueue(late.metadata())
    await look_for(bench, 60)
    assert await bench.state(late) is RequestState.QUEUED
    assert (await bench.depth(request.cls.queue), await bench.depth(late.cls.queue)) == (0, 1)


async def test_a_request_whose_message_is_a_dead_letter_waits_for_an_operator(bench: Bench) -> None:
    request = a_request("r")
    await bench.accept(request)
    (message,) = await bench.broker.get(request.cls.queue)
    newer = message.body.replace(b'"version":1', b'"version":99')
    letter = codec.DeadLetter(reason="a newer version", queue=request.cls.queue, at_ns=0, body=newer)
    await bench.broker.publish(DEAD, codec.encode_dead_letter(letter))
    await bench.broker.ack(message)
    await look_for(bench, 60)
    assert (await bench.depth(request.cls.queue), await bench.depth(DEAD)) == (0, 1)
    assert await bench.state(request) is RequestState.QUEUED


async def dead_letter_of(bench: Bench) -> Request:
    """Return a request whose message has long been a dead letter."""
    request = a_request("r")
    await bench.accept(request)
    (message,) = await bench.broker.get(request.cls.queue)
    letter = codec.DeadLetter(reason="damaged", queue=request.cls.queue, at_ns=0, body=message.body)
    await bench.broker.publish(DEAD, codec.encode_dead_letter(letter))
    await bench.broker.ack(message)
    await look_for(bench, 60)
    return request


async def test_a_letter_that_an_operator_is_putting_back_is_not_missing(bench: Bench) -> None:
    """He has it for some seconds, in which it is neither a dead letter nor in its queue."""
    request = await dead_letter_of(bench)
    for pause_s in range(8):
        (letter,) = await bench.broker.pick(DEAD, lambda body: True, 1, looks_max=100)
        await look_for(bench, 8)
        await bench.broker.requeue(letter)
        await look_for(bench, 24 + pause_s)
    assert await bench.state(request) is RequestState.QUEUED


async def test_a_letter_that_is_put_back_while_queues_are_read_is_not_missing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its queue is read before it is there, and the dead letters after it was one."""
    request = await dead_letter_of(bench)
    spec = ModelSpec(id=request.model, tokenizer="byte", context_tokens=4096)
    operator = DeadLetterQueue(bench.broker, bench.store, ServedModels([spec]))
    index, put_back = Reindexer.index, list[str]()

    async def read_before(reindexer: Reindexer, queue: QueueName) -> Reading:
        read = await index(reindexer, queue)
        put_back.extend(each.resolution for each in await operator.retry(lambda body: True))
        return read

    monkeypatch.setattr(Reindexer, "index", read_before)
    await look_for(bench, 700)
    assert put_back == ["queued"]
    assert await bench.state(request) is RequestState.QUEUED
    assert await bench.depth(request.cls.queue) == 1


async def test_two_readings_are_apart_by_their_ends(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that stood still, or read other queues, was late with the first one."""
    request, index, read_at_ns = a_request("r"), Reindexer.index, list[int]()
    await bench.store.enqueue(request.metadata())

    async def slow(reindexer: Reindexer, queue: QueueName) -> Reading:
        bench.clock.time_ns += 0 if read_at_ns else 10_000_000_000
        read_at_ns.append(bench.clock.time_ns)
        return await index(reindexer, queue)

    monkeypatch.setattr(Reindexer, "index", slow)
    while await bench.state(request) is RequestState.QUEUED:
        await bench.look(GPU_0)
    assert read_at_ns[-1] - read_at_ns[0] >= AGAIN_NS


@pytest.mark.parametrize(
    "body",
    [
        b'[{"id":"r1","offset":0,"token_ids":[1]}]',
        codec.encode_request(a_request("r1"))[:-1],
        codec.encode_request(replace(a_request("r11"), fingerprint="r1")),
    ],
    ids=["output", "damaged message", "message of another request"],
)
async def test_a_dead_letter_that_only_mentions_a_request_does_not_make_it_wait(
    bench: Bench, body: bytes
) -> None:
    """Nothing that an operator does with it brings the request's message back."""
    request = a_request("r1")
    await bench.store.enqueue(request.metadata())
    letter = codec.DeadLetter(reason="unreadable", queue=request.cls.queue, at_ns=0, body=body)
    await bench.broker.publish(DEAD, codec.encode_dead_letter(letter))
    await look_for(bench, 60)
    log = await bench.store.read_output(request.id, 0)
    assert log is not None and (log.outcome, log.detail) == (Outcome.OUTPUT_LOST, DETAIL)


async def test_after_a_reading_that_misses_nothing_a_queue_is_read_less_and_less_often(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest waits while clients of newer ones leave; a reading takes the messages from all agents."""
    oldest, *others = (a_request(f"r{n:03d}", arrival_ns=n) for n in range(151))
    await bench.accept(oldest)
    reads, get = 0, bench.own_broker.get

    async def counted(queue: QueueName, limit: int = 1) -> Sequence[Delivery]:
        nonlocal reads
        reads += 1
        return await get(queue, limit)

    monkeypatch.setattr(bench.own_broker, "get", counted)
    for other in others:
        await bench.store.enqueue(other.metadata())
        await bench.store.cancel(other.id)
        await bench.look()
    assert await bench.state(oldest) is RequestState.QUEUED
    assert 3 <= reads / 2 <= 8, "two calls each: the second finds an empty queue"
