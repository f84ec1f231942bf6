"""A side effect that a defect keeps failing costs its request at most: the agent goes on with all others."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from qlm.agents.shell import side_effects
from qlm.agents.shell.side_effects import TRIES_AGAIN, TRIES_MAX, SideEffects
from qlm.broker import codec
from qlm.broker.sqlite.broker import SqliteQueues
from qlm.broker.sqlite.file import SqliteFile
from qlm.broker.topology import hold_queue
from qlm.cli.runtime.clock import SystemClock
from qlm.controller.shell.missing_messages import AGAIN_NS, STUCK_NS, MissingMessages
from qlm.controller.shell.reindex import Reindexer
from qlm.domain.actions import Ack, DeadLetter, Demote, ForwardMessage, RenewDelivery, ReportParked, Return
from qlm.domain.errors import BrokerUnavailableError, StoreUnavailableError
from qlm.domain.ids import InstanceId, SessionId
from qlm.domain.lease import Epoch, Holder
from qlm.domain.lease_answer import Granted
from qlm.domain.outcome import Outcome
from qlm.domain.ports.agent_store import AgentStore
from qlm.domain.ports.broker import Broker, Delivery
from qlm.domain.request import Request, RequestState
from qlm.domain.shell.faults import FaultKind, FaultLog
from qlm.store.embedded.memory import MemoryStore
from support.flaky import until
from support.requests import a_request
from support.store_steps import SteppedClock

HOLDER, OTHER = (Holder(InstanceId(name), SessionId("s")) for name in ("i", "j"))
HIT, SPARED = (a_request(name, deadline_ms=1000.0) for name in ("hit", "spared"))
QUEUE = HIT.cls.queue


class Defective:
    """A real store or broker with a defect in some operations that one request or message hits."""

    def __init__(self, real: object, hits: Callable[[tuple[Any, ...]], bool], errors: dict[str, Exception]):
        self.calls: list[str] = []
        self._real = real
        self._hits = hits
        self._errors = errors

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._real, name)

        async def call(*arguments: Any, **named: Any) -> Any:
            if self._hits(arguments):
                self.calls.append(name)
                if name in self._errors:
                    raise self._errors[name]
            return await method(*arguments, **named)

        return call


def hits(arguments: tuple[Any, ...]) -> bool:
    return any(
        each == HIT.id
        or (isinstance(each, Delivery) and b"hit" in each.body)
        or (isinstance(each, bytes) and b"hit" in each)
        or getattr(each, "id", None) == HIT.id
        for each in arguments
    )


class Bench:
    """An agent's side effects on a real store and queue, which holds a message of each of two requests."""

    def __init__(self, queues: SqliteQueues) -> None:
        self.queues = queues
        self.others = queues.broker()
        self.store = MemoryStore(SystemClock())
        self.counted: list[FaultKind] = []
        self.leased: dict[str, tuple[Delivery, Epoch]] = {}
        self.errors: dict[str, Exception] = {}
        self.own = queues.broker()
        self.broker = Defective(self.own, hits, self.errors)
        self.agent_store = Defective(self.store, hits, self.errors)
        self.effects = SideEffects(
            HOLDER.instance,
            cast(Broker, self.broker),
            cast(AgentStore, self.agent_store),
            SystemClock(),
            FaultLog(self.counted.append),
        )
        self.worker = asyncio.create_task(self.effects.run())

    async def begin(self) -> None:
        """Publish and lease both requests."""
        for request in (HIT, SPARED):
            await self.others.publish(QUEUE, codec.encode_request(request))
            (delivery,) = await self.own.get(QUEUE, 1)
            granted = await self.store.lease(request.metadata(), HOLDER, None)
            assert isinstance(granted, Granted)
            self.leased[request.id] = delivery, granted.lease.epoch

    def returns(self, request: Request) -> Return:
        """Return a request to its queue."""
        delivery, epoch = self.leased[request.id]
        return Return(id=request.id, epoch=epoch, delivery=delivery, home=QUEUE, why="evicted")

    async def from_hold_queue(self, request: Request) -> None:
        """Have the message of a request come from the agent's hold queue."""
        delivery, epoch = self.leased[request.id]
        await self.own.ack(delivery)
        hold = hold_queue(HOLDER.instance)
        await self.others.publish(hold, delivery.body)
        (again,) = await self.own.get(hold, 1)
        self.leased[request.id] = again, epoch

    def demotes(self, request: Request) -> Demote:
        """Move a request to its late class."""
        delivery, epoch = self.leased[request.id]
        late = replace(request, cls=request.cls.missed())
        return Demote(request=late, epoch=epoch, delivery=delivery, why="too late")

    async def close_agent(self) -> None:
        """End the agent's connection: its messages return."""
        self.worker.cancel()
        await self.own.close()

    async def waiting(self) -> list[str]:
        """Take all messages out of the class queue; return the requests that they are of."""
        return [codec.decode_request(each.body).id for each in await self.others.get(QUEUE, 10)]

    async def state(self, request: Request) -> RequestState:
        record = await self.store.record(request.id)
        assert record is not None
        return record.state


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    file = await SqliteFile.open(tmp_path / "queue.db")
    queues = await SqliteQueues.open(file)
    made = Bench(queues)
    await made.begin()
    yield made
    made.worker.cancel()
    with contextlib.suppress(asyncio.CancelledError, KeyError):
        await made.worker
    await queues.close()
    await file.close()


@pytest.fixture(autouse=True)
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_effects, "RETRY_S", 0.001)


async def test_a_message_that_cannot_be_acknowledged_holds_up_no_other(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.errors["ack"] = KeyError("tag")
    for request in (HIT, SPARED, HIT):
        bench.effects.put(Ack(delivery=bench.leased[request.id][0]))
    with caplog.at_level(logging.ERROR):
        await asyncio.wait_for(bench.effects.finished(), 10)
    assert not bench.worker.done()
    assert bench.counted == [FaultKind.BUG] * 2 * TRIES_MAX, "a success between them: each has all tries"
    assert [each.exc_info is not None for each in caplog.records] == [True, False]
    assert await bench.waiting() == []
    await bench.close_agent()
    assert await bench.waiting() == [HIT.id], "delivered again; its lease says that it has ended"


async def test_a_defect_that_has_not_passed_is_not_waited_for_as_long_at_each_effect(bench: Bench) -> None:
    bench.errors["ack"] = KeyError("tag")
    for _ in range(20):
        bench.effects.put(Ack(delivery=bench.leased[HIT.id][0]))
    await asyncio.wait_for(bench.effects.finished(), 10)
    assert bench.broker.calls.count("ack") == TRIES_MAX + 19 * TRIES_AGAIN


@pytest.mark.parametrize(
    ("operation", "make"),
    [
        ("park", lambda d, e: ReportParked(id=HIT.id, epoch=e, why="preempted")),
        ("publish", lambda d, e: RenewDelivery(delivery=d)),
        ("publish", lambda d, e: ForwardMessage(delivery=d, holder=OTHER)),
        ("publish", lambda d, e: DeadLetter(delivery=d, reason="unreadable")),
    ],
)
async def test_what_is_left_undone_leaves_the_message_to_the_broker(
    bench: Bench, operation: str, make: Callable[[Delivery, Epoch], Any]
) -> None:
    bench.errors[operation] = KeyError("x")
    bench.effects.put(make(*bench.leased[HIT.id]))
    bench.effects.put(bench.returns(SPARED))
    await asyncio.wait_for(bench.effects.finished(), 10)
    assert not bench.worker.done()
    assert await bench.waiting() == [SPARED.id]
    assert await bench.others.depth(hold_queue(HOLDER.instance)) == 0
    await bench.close_agent()
    assert await bench.waiting() == [HIT.id]


async def test_the_second_message_of_a_request_is_kept_if_the_first_cannot_be_renewed(bench: Bench) -> None:
    first, _ = bench.leased[HIT.id]
    await bench.others.publish(QUEUE, codec.encode_request(HIT))
    (second,) = await bench.own.get(QUEUE, 1)
    await bench.own.ack(first)  # its channel was lost, and the second is the same message again
    bench.errors["publish"] = KeyError("x")
    for effect in (
        RenewDelivery(delivery=first, other=second),
        Ack(delivery=second),
        Ack(delivery=bench.leased[SPARED.id][0]),
    ):
        bench.effects.put(effect)
    await asyncio.wait_for(bench.effects.finished(), 10)
    await bench.close_agent()
    assert await bench.waiting() == [HIT.id]


async def test_a_renewal_that_fails_keeps_no_message_of_another_request(bench: Bench) -> None:
    bench.errors["publish"] = KeyError("x")
    bench.effects.put(RenewDelivery(delivery=bench.leased[HIT.id][0]))
    bench.effects.put(Ack(delivery=bench.leased[SPARED.id][0]))
    await asyncio.wait_for(bench.effects.finished(), 10)
    await bench.close_agent()
    assert await bench.waiting() == [HIT.id]


async def test_a_request_whose_lease_cannot_be_released_comes_back_to_its_agent(bench: Bench) -> None:
    bench.errors["release"] = KeyError("epoch")
    bench.effects.put(bench.returns(HIT))
    bench.effects.put(bench.returns(SPARED))
    await asyncio.wait_for(bench.effects.finished(), 10)
    assert await bench.waiting() == [HIT.id, SPARED.id]
    assert [await bench.state(each) for each in (HIT, SPARED)] == [RequestState.RUNNING, RequestState.QUEUED]
    assert isinstance(await bench.store.lease(HIT.metadata(), HOLDER, None), Granted)


@pytest.mark.parametrize(("operation", "demoted"), [("requeue", False), ("publish", True)])
async def test_a_request_without_a_message_that_can_be_pulled_is_ended(
    bench: Bench, operation: str, demoted: bool
) -> None:
    bench.errors[operation] = KeyError("x")
    bench.effects.put(bench.demotes(HIT) if demoted else bench.returns(HIT))
    bench.effects.put(bench.returns(SPARED))
    await asyncio.wait_for(bench.effects.finished(), 10)
    assert not bench.worker.done()
    assert await bench.state(HIT) is RequestState.QUEUED

    clock = SteppedClock()
    controller = MissingMessages(
        bench.others, bench.store, Reindexer(bench.others, bench.store, SystemClock()), clock
    )
    assert len(await bench.others.get(QUEUE, 10)) == 1
    granted = await bench.store.lease(SPARED.metadata(), OTHER, None)
    assert isinstance(granted, Granted)
    for _ in range(4):
        await controller.run(await bench.store.view(), {QUEUE: 0}, clock.now_ns())
        clock.time_ns += STUCK_NS + AGAIN_NS
    record = await bench.store.record(HIT.id)
    assert record is not None
    assert record.outcome is Outcome.OUTPUT_LOST


async def test_one_that_no_part_could_end_ends_the_agent_and_with_it_the_lease(bench: Bench) -> None:
    bench.errors |= {"publish": KeyError("x"), "release": KeyError("epoch")}
    bench.effects.put(bench.demotes(HIT))
    with pytest.raises(KeyError, match="epoch"):
        await asyncio.wait_for(asyncio.shield(bench.worker), 10)


async def test_giving_up_waits_for_a_store_that_is_away(bench: Bench) -> None:
    bench.errors |= {"publish": KeyError("x"), "release": StoreUnavailableError("away")}
    bench.effects.put(bench.demotes(HIT))
    await until(lambda: bench.agent_store.calls.count("release") >= 3)
    assert not bench.worker.done()
    del bench.errors["release"]
    await asyncio.wait_for(bench.effects.finished(), 10)
    assert await bench.state(HIT) is RequestState.QUEUED


@pytest.mark.parametrize("operation", ["publish", "release", "ack"])
async def test_a_request_waits_once_its_message_has_left_the_hold_queue(bench: Bench, operation: str) -> None:
    """RabbitMQ blocks publishers for as long as it is short of memory: the request would end as lost."""
    await bench.from_hold_queue(HIT)
    bench.errors[operation] = (StoreUnavailableError if operation == "release" else BrokerUnavailableError)(
        "x"
    )
    bench.effects.put(bench.returns(HIT))
    await until(lambda: (bench.broker.calls + bench.agent_store.calls).count(operation) >= 3)
    assert (await bench.state(HIT) is RequestState.QUEUED) == (operation == "ack")
    del bench.errors[operation]
    await bench.effects.finished()
    assert await bench.state(HIT) is RequestState.QUEUED
    assert await bench.waiting() == ["hit"]
    assert await bench.others.depth(hold_queue(HOLDER.instance)) == 0


@pytest.mark.parametrize("operation", ["publish", "release", "ack"])
async def test_a_return_from_the_hold_queue_that_a_defect_keeps_failing_loses_no_message(
    bench: Bench, operation: str
) -> None:
    await bench.from_hold_queue(HIT)
    bench.errors[operation] = KeyError("x")
    bench.effects.put(bench.returns(HIT))
    await asyncio.wait_for(bench.effects.finished(), 10)
    await bench.close_agent()
    waits = "hit" in await bench.waiting()
    left = len(await bench.others.get(hold_queue(HOLDER.instance), 10))
    assert (waits, left) == (operation != "publish", int(operation != "release"))
