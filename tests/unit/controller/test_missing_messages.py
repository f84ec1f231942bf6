"""Requests whose message is gone end, and no others do, on a real store and a real queue."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from qlm.broker import codec
from qlm.broker.topology import DEAD
from qlm.controller.shell.missing_messages import AGAIN_NS, DETAIL, STUCK_NS, MissingMessages
from qlm.controller.shell.reconciler import PERIOD_NS
from qlm.controller.shell.reindex import Reading, Reindexer
from qlm.domain.errors import StoreUnavailableError
from qlm.domain.fleet import ModelSpec
from qlm.domain.ids import QueueName
from qlm.domain.outcome import Outcome
from qlm.domain.ports.broker import UNHEARD_MAX_S, Delivery
from qlm.domain.request import Request, RequestState
from qlm.gateway.sessions.operators.dead_letters import DeadLetterQueue
from qlm.gateway.tokenizers.served_models import ServedModels
from qlm.store.embedded.memory import MemoryStore
from support.reconciling import GPU_0, ReconcilerBench, reconciler_bench
from support.requests import a_request


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[ReconcilerBench]:
    async with reconciler_bench(tmp_path) as made:
        yield made


async def purge(bench: ReconcilerBench, queue: QueueName) -> None:
    while taken := await bench.broker.get(queue):
        await bench.broker.ack(taken[0])


async def test_a_request_whose_message_is_gone_ends_as_lost(bench: ReconcilerBench) -> None:
    """Its client waited for ever, and its group stayed at the head of a virtual queue."""
    requests = [a_request(f"r{n}", arrival_ns=n) for n in range(3)]
    await bench.accept(*requests)
    await purge(bench, requests[0].cls.queue)
    await bench.look_for(STUCK_NS / 1e9)
    assert [await bench.state(each) for each in requests] == [RequestState.QUEUED] * 3
    await bench.look_for((STUCK_NS + AGAIN_NS) / 1e9)
    for each in requests:
        log = await bench.store.read_output(each.id, 0)
        assert log is not None and (log.outcome, log.detail) == (Outcome.OUTPUT_LOST, DETAIL)


@pytest.mark.parametrize("operation", ["end_waiting", "bring_back"])
async def test_a_failure_makes_no_request_end_sooner_and_none_much_later(
    bench: ReconcilerBench, monkeypatch: pytest.MonkeyPatch, operation: str
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
            await bench.look_for(100, GPU_0)
    failed_at_ns = bench.clock.time_ns
    while await bench.state(request) is RequestState.QUEUED:
        await bench.look(GPU_0)
    assert bench.clock.time_ns - read_at_ns[0] >= AGAIN_NS
    if operation == "end_waiting":
        assert bench.clock.time_ns - failed_at_ns <= 2 * PERIOD_NS


async def test_a_missing_message_is_found_in_a_class_that_goes_on_without_it(bench: ReconcilerBench) -> None:
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


async def test_requests_whose_messages_wait_do_not_end_however_long_they_wait(bench: ReconcilerBench) -> None:
    requests = [a_request(f"r{n}", arrival_ns=n) for n in range(3)]
    await bench.accept(*requests)
    await bench.look_for(100)
    assert {await bench.state(each) for each in requests} == {RequestState.QUEUED}
    assert await bench.depth(requests[0].cls.queue) == 3


async def test_a_message_between_pull_and_lease_is_not_missing(bench: ReconcilerBench) -> None:
    """An agent holds it while the queue is read, and leases or returns it before that is read again."""
    request = a_request("r")
    await bench.accept(request)
    (message,) = await bench.broker.get(request.cls.queue)
    await bench.look_for((STUCK_NS + AGAIN_NS / 2) / 1e9, GPU_0)
    await bench.broker.requeue(message)
    await bench.look_for(60, GPU_0)
    assert await bench.state(request) is RequestState.QUEUED


@pytest.mark.parametrize("taken_after_s", range(0, 40, 2))
async def test_a_message_that_a_stopped_process_has_is_not_missing(
    bench: ReconcilerBench, taken_after_s: int
) -> None:
    """The broker returns it when it has not heard of the process for long enough."""
    request = a_request("r")
    await bench.accept(request)
    await bench.look_for(taken_after_s, GPU_0)
    (message,) = await bench.broker.get(request.cls.queue)
    await bench.look_for(UNHEARD_MAX_S, GPU_0)
    await bench.broker.requeue(message)
    await bench.look_for(60, GPU_0)
    assert await bench.state(request) is RequestState.QUEUED


async def test_a_message_in_the_queue_of_another_class_is_not_missing(bench: ReconcilerBench) -> None:
    """An interrupted demotion leaves it in the queue of the former class."""
    request = a_request("r")
    late = replace(request, cls=replace(request.cls, late=True))
    await bench.publish(request)
    await bench.store.enqueue(late.metadata())
    await bench.look_for(60)
    assert await bench.state(late) is RequestState.QUEUED
    assert (await bench.depth(request.cls.queue), await bench.depth(late.cls.queue)) == (0, 1)


async def test_a_request_whose_message_is_a_dead_letter_waits_for_an_operator(bench: ReconcilerBench) -> None:
    request = a_request("r")
    await bench.accept(request)
    (message,) = await bench.broker.get(request.cls.queue)
    newer = message.body.replace(b'"version":1', b'"version":99')
    letter = codec.DeadLetter(reason="a newer version", queue=request.cls.queue, at_ns=0, body=newer)
    await bench.broker.publish(DEAD, codec.encode_dead_letter(letter))
    await bench.broker.ack(message)
    await bench.look_for(60)
    assert (await bench.depth(request.cls.queue), await bench.depth(DEAD)) == (0, 1)
    assert await bench.state(request) is RequestState.QUEUED


async def dead_letter_of(bench: ReconcilerBench) -> Request:
    """Return a request whose message has long been a dead letter."""
    request = a_request("r")
    await bench.accept(request)
    (message,) = await bench.broker.get(request.cls.queue)
    letter = codec.DeadLetter(reason="damaged", queue=request.cls.queue, at_ns=0, body=message.body)
    await bench.broker.publish(DEAD, codec.encode_dead_letter(letter))
    await bench.broker.ack(message)
    await bench.look_for(60)
    return request


async def test_a_letter_that_an_operator_is_putting_back_is_not_missing(bench: ReconcilerBench) -> None:
    """He has it for some seconds, in which it is neither a dead letter nor in its queue."""
    request = await dead_letter_of(bench)
    for pause_s in range(8):
        (letter,) = await bench.broker.pick(DEAD, lambda body: True, 1, looks_max=100)
        await bench.look_for(8)
        await bench.broker.requeue(letter)
        await bench.look_for(24 + pause_s)
    assert await bench.state(request) is RequestState.QUEUED


async def test_a_letter_that_is_put_back_while_queues_are_read_is_not_missing(
    bench: ReconcilerBench, monkeypatch: pytest.MonkeyPatch
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
    await bench.look_for(700)
    assert put_back == ["queued"]
    assert await bench.state(request) is RequestState.QUEUED
    assert await bench.depth(request.cls.queue) == 1


async def test_two_readings_are_apart_by_their_ends(
    bench: ReconcilerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    bench: ReconcilerBench, body: bytes
) -> None:
    """Nothing that an operator does with it brings the request's message back."""
    request = a_request("r1")
    await bench.store.enqueue(request.metadata())
    letter = codec.DeadLetter(reason="unreadable", queue=request.cls.queue, at_ns=0, body=body)
    await bench.broker.publish(DEAD, codec.encode_dead_letter(letter))
    await bench.look_for(60)
    log = await bench.store.read_output(request.id, 0)
    assert log is not None and (log.outcome, log.detail) == (Outcome.OUTPUT_LOST, DETAIL)


async def test_after_a_reading_that_misses_nothing_a_queue_is_read_less_and_less_often(
    bench: ReconcilerBench, monkeypatch: pytest.MonkeyPatch
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
