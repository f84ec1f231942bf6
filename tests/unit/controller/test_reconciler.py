"""The controller's repairs on a real store and a real queue: what died leaves nothing behind."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from qlm.broker import codec
from qlm.broker.topology import DEAD, hold_queue
from qlm.controller.shell.idle_queues import IDLE_NS
from qlm.controller.shell.reconciler import GRACE_NS, PERIOD_NS
from qlm.domain.errors import BrokerUnavailableError, NotLeadingError, StoreUnavailableError
from qlm.domain.ids import ControllerId, SessionId
from qlm.domain.leadership import Term
from qlm.domain.lease import Holder
from qlm.domain.outcome import Outcome
from qlm.domain.output import LogEntry
from qlm.domain.request import RequestState
from qlm.store.embedded.memory import MemoryStore
from support.reconciling import GPU_0, GPU_1, ReconcilerBench, reconciler_bench
from support.requests import a_request


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[ReconcilerBench]:
    async with reconciler_bench(tmp_path) as made:
        yield made


async def test_what_a_dead_holder_leased_waits_again(bench: ReconcilerBench) -> None:
    request = a_request()
    await bench.beat(GPU_0)
    await bench.lease(request, GPU_0)
    assert not await bench.look(GPU_0)
    assert await bench.state(request) is RequestState.RUNNING
    assert await bench.look(GPU_1)
    assert await bench.state(request) is RequestState.QUEUED


async def test_a_lost_instance_is_named_once(
    bench: ReconcilerBench, caplog: pytest.LogCaptureFixture
) -> None:
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


async def test_a_new_life_of_an_instance_does_not_keep_the_leases_of_the_former(
    bench: ReconcilerBench,
) -> None:
    request = a_request()
    await bench.beat(GPU_0)
    await bench.lease(request, GPU_0)
    await bench.look(GPU_0)
    assert await bench.look(Holder(GPU_0.instance, SessionId("next")))
    assert await bench.state(request) is RequestState.QUEUED


async def test_the_hold_queue_of_a_dead_instance_is_emptied_into_the_class_queue(
    bench: ReconcilerBench,
) -> None:
    request, alive = a_request("dead"), a_request("alive")
    await bench.publish(request, hold_queue(GPU_0.instance))
    await bench.publish(alive, hold_queue(GPU_1.instance))
    assert await bench.look(GPU_1)
    assert await bench.depth(hold_queue(GPU_0.instance)) == 0
    assert await bench.depth(hold_queue(GPU_1.instance)) == 1, "a live instance empties its own"
    assert await bench.depth(request.cls.queue) == 1
    assert await bench.state(request) is RequestState.QUEUED


async def test_an_unreadable_message_in_a_dead_instances_hold_queue_becomes_a_dead_letter(
    bench: ReconcilerBench,
) -> None:
    await bench.broker.publish(hold_queue(GPU_0.instance), b"{}")
    await bench.look()
    assert await bench.depth(DEAD) == 1
    assert await bench.depth(hold_queue(GPU_0.instance)) == 0


TIMELY = a_request(deadline_ms=1000.0)
LATE = replace(TIMELY, cls=TIMELY.cls.missed())


async def test_what_a_dead_instance_held_back_goes_to_the_class_in_which_it_waits(
    bench: ReconcilerBench,
) -> None:
    await bench.publish(TIMELY, hold_queue(GPU_0.instance))
    await bench.store.enqueue(LATE.metadata())
    await bench.look()
    assert await bench.depth(TIMELY.cls.queue) == 0
    (moved,) = await bench.broker.get(LATE.cls.queue, 10)
    assert codec.decode_request(moved.body) == LATE


async def test_an_emptied_store_is_rebuilt_from_the_queue(bench: ReconcilerBench) -> None:
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


async def test_between_two_periods_nothing_is_looked_at(bench: ReconcilerBench) -> None:
    await bench.look(GPU_0)
    bench.faults.fail(StoreUnavailableError("must not be asked"), "queues", "depth", "get")
    assert not await bench.reconciler.run(await bench.store.view())
    assert not bench.faults.raised


async def test_an_instance_that_comes_or_goes_is_looked_after_at_once(bench: ReconcilerBench) -> None:
    await bench.look(GPU_0)
    await bench.publish(a_request(), hold_queue(GPU_0.instance))
    await bench.store.leave(GPU_0)
    assert await bench.reconciler.run(await bench.store.view()), "no period has passed, but gpu-0 is gone"
    assert await bench.depth(a_request().cls.queue) == 1


async def emptied(bench: ReconcilerBench) -> Term:
    """Let the store lose everything under a reconciler that leads; return its term in what follows."""
    bench.clock.time_ns += 1
    bench.store = MemoryStore(bench.clock)
    bench.reconciler = bench.new_reconciler()
    return (await bench.store.acquire_leadership(ControllerId("c"), 3600)).term


async def test_an_emptied_store_is_filled_from_the_queues_at_the_first_look(bench: ReconcilerBench) -> None:
    request = a_request()
    await bench.accept(request)
    term = await emptied(bench)
    assert await bench.reconciler.run(await bench.store.view(), term)
    assert await bench.state(request) is RequestState.QUEUED


async def test_what_runs_is_not_taken_from_an_instance_that_an_emptied_store_has_not_heard_of(
    bench: ReconcilerBench,
) -> None:
    request = a_request()
    term = await emptied(bench)
    await bench.store.reregister(request.metadata(), GPU_0, ())
    await bench.publish(request, hold_queue(GPU_0.instance))
    await bench.reconciler.run(await bench.store.view(), term)
    assert await bench.state(request) is RequestState.RUNNING
    assert await bench.depth(hold_queue(GPU_0.instance)) == 1
    bench.clock.time_ns += GRACE_NS
    assert await bench.reconciler.run(await bench.store.view(), term), "it stays silent"
    assert await bench.state(request) is RequestState.QUEUED
    assert await bench.depth(hold_queue(GPU_0.instance)) == 0


@pytest.mark.parametrize("lives", [True, False])
async def test_what_runs_is_not_taken_from_an_instance_that_had_no_time_for_a_heartbeat(
    bench: ReconcilerBench, lives: bool
) -> None:
    request = a_request()
    await bench.beat(GPU_0)
    await bench.lease(request, GPU_0)
    await bench.look(GPU_0)
    bench.clock.time_ns += 4_000_000_000
    bench.reconciler.give_time()
    await bench.reconciler.run(await bench.store.view())
    assert await bench.state(request) is RequestState.RUNNING, "the controller came first"
    if lives:
        await bench.beat(GPU_0)
    bench.clock.time_ns += GRACE_NS
    await bench.reconciler.run(await bench.store.view())
    assert await bench.state(request) is (RequestState.RUNNING if lives else RequestState.QUEUED)


@pytest.mark.parametrize("lives", [True, False])
async def test_an_instance_that_had_no_time_for_a_heartbeat_is_not_said_to_be_gone(
    bench: ReconcilerBench, caplog: pytest.LogCaptureFixture, lives: bool
) -> None:
    """Such as after the machine slept, where the controller goes on before the agents."""
    caplog.set_level("INFO", "qlm.controller")
    await bench.look(GPU_0)
    bench.clock.time_ns += 4_000_000_000
    bench.reconciler.give_time()
    for step_ns in (0, GRACE_NS // 2, GRACE_NS // 2):
        bench.clock.time_ns += step_ns
        await bench.reconciler.run(await bench.store.view())
        if lives:
            await bench.beat(GPU_0)
    assert [record.getMessage() for record in caplog.records] == ([] if lives else ["gone: gpu-0"])


async def test_a_controller_whose_leadership_lapsed_says_of_no_instance_that_it_is_gone(
    bench: ReconcilerBench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "qlm.controller")
    term = (await bench.store.acquire_leadership(ControllerId("c"), 4)).term
    await bench.beat(GPU_0)
    await bench.reconciler.run(await bench.store.view(), term)
    bench.clock.time_ns += 5_000_000_000
    with pytest.raises(NotLeadingError):
        await bench.reconciler.run(await bench.store.view(), term)
    assert not caplog.records


async def test_an_empty_store_is_marked_once_all_queues_are_read(bench: ReconcilerBench) -> None:
    """Also what comes back to a queue, or is found in the hands of the dead, while the store is young."""
    first, returned, leased = (a_request(id) for id in ("first", "returned", "leased"))
    await bench.accept(first)
    await bench.publish(leased, hold_queue(GPU_0.instance))
    term = await emptied(bench)
    await bench.reconciler.run(await bench.store.view(), term)
    assert not await bench.store.indexed(), "live instances have not had the time to say what they run"
    await bench.publish(returned)
    bench.clock.time_ns += GRACE_NS
    await bench.reconciler.run(await bench.store.view(), term)
    assert await bench.store.indexed()
    assert [await bench.state(each) for each in (first, returned, leased)] == [RequestState.QUEUED] * 3


async def test_a_store_that_is_marked_is_not_filled_again_by_who_takes_over(bench: ReconcilerBench) -> None:
    await bench.accept(a_request())
    await bench.store.mark_indexed((await bench.store.acquire_leadership(ControllerId("former"), 1.0)).term)
    bench.clock.time_ns += PERIOD_NS
    term = (await bench.store.acquire_leadership(ControllerId("c"), 3600)).term
    bench.faults.fail(BrokerUnavailableError("must not be read again"), "get")
    await bench.reconciler.run(await bench.store.view(), term)
    assert not bench.faults.raised


async def test_a_broker_that_is_away_while_an_empty_store_is_filled_is_asked_again(
    bench: ReconcilerBench,
) -> None:
    request = a_request()
    await bench.accept(request)
    term = await emptied(bench)
    bench.faults.fail(BrokerUnavailableError("away"), "get")
    with pytest.raises(BrokerUnavailableError):
        await bench.reconciler.run(await bench.store.view(), term)
    bench.clock.time_ns += GRACE_NS
    with pytest.raises(BrokerUnavailableError):
        await bench.reconciler.run(await bench.store.view(), term)
    assert not await bench.store.indexed()
    bench.faults.heal()
    bench.clock.time_ns += PERIOD_NS
    await bench.reconciler.run(await bench.store.view(), term)
    assert await bench.store.indexed()
    assert await bench.state(request) is RequestState.QUEUED


async def test_the_queue_of_a_class_is_deleted_once_it_is_idle(bench: ReconcilerBench) -> None:
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
    bench: ReconcilerBench, error: Exception, unheard: bool
) -> None:
    queue = a_request().cls.queue
    await bench.broker.publish(queue, b"")
    (delivery,) = await bench.broker.get(queue)
    await bench.broker.ack(delivery)
    (bench.faults.fail_unheard if unheard else bench.faults.fail)(error, "delete_unused")
    with pytest.raises(type(error)):
        await bench.look_for(2 * IDLE_NS / 1e9, GPU_0)
    assert not await bench.look(GPU_0), "the run after it"
    bench.faults.heal()
    await bench.accept(request := a_request("r2"))
    await bench.look_for(2 * IDLE_NS / 1e9, GPU_0)
    assert await bench.depth(queue) == 1
    assert await bench.state(request) is RequestState.QUEUED
