"""A controller's reconciler on a real store and a real queue, whose time a test moves."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from qlm.broker import codec
from qlm.broker.sqlite.broker import SqliteQueues
from qlm.broker.sqlite.file import SqliteFile
from qlm.controller.shell.reconciler import PERIOD_NS, Reconciler
from qlm.domain.fleet import InstanceStatus
from qlm.domain.ids import InstanceId, QueueName, SessionId
from qlm.domain.lease import Holder
from qlm.domain.lease_answer import Granted
from qlm.domain.ports.broker import Broker
from qlm.domain.request import Request, RequestState
from qlm.store.embedded.memory import MemoryStore
from support.flaky import Faults, flaky
from support.store_steps import SteppedClock

GPU_0, GPU_1 = Holder(InstanceId("gpu-0"), SessionId("a")), Holder(InstanceId("gpu-1"), SessionId("b"))


@dataclass
class ReconcilerBench:
    """A reconciler on real parts; faults come between the broker and the reconciler alone."""

    queues: SqliteQueues
    clock: SteppedClock = field(default_factory=SteppedClock)
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

    async def look_for(self, seconds: float, *alive: Holder) -> None:
        """Run again and again for a time, with these holders alive."""
        until_ns = self.clock.time_ns + round(seconds * 1e9)
        while self.clock.time_ns < until_ns:
            await self.look(*alive)


@asynccontextmanager
async def reconciler_bench(folder: Path) -> AsyncIterator[ReconcilerBench]:
    """Open the parts in files of a folder."""
    file = await SqliteFile.open(folder / "queue.db")
    queues = await SqliteQueues.open(file)
    try:
        yield ReconcilerBench(queues)
    finally:
        await queues.close()
        await file.close()
