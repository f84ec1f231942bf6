"""The SQLite broker against a model of a few lines, under random operations, closes and crashes."""

import asyncio
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from qlm.broker.sqlite.broker import SqliteQueues
from qlm.broker.sqlite.file import SqliteFile
from qlm.domain.ids import QueueName
from qlm.domain.ports.broker import Delivery

queues = st.sampled_from([QueueName("a"), QueueName("b")])


class SqliteBrokerAgainstModel(RuleBasedStateMachine):
    """Model: the queue of each message, whether it was ever handed out, unsettled deliveries, and order."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        memory = Path("/dev/shm")  # a crash of the process does not ask for a disk
        self.folder = Path(tempfile.mkdtemp(prefix="qlm-model-", dir=memory if memory.is_dir() else None))
        self.lives = 0
        self.published = 0
        self.messages: dict[int, QueueName] = {}
        self.seen: set[int] = set()
        self.unsettled: dict[int, Delivery] = {}
        self.acked_lately: dict[int, QueueName] = {}
        self.runner.run(self.start())

    async def start(self) -> None:
        self.path = self.folder / f"{self.lives}.db"
        self.file = await SqliteFile.open(self.path)
        self.all = await SqliteQueues.open(self.file)
        self.broker = self.all.broker()

    def ready(self, queue: QueueName) -> list[int]:
        return sorted(n for n, where in self.messages.items() if where == queue and n not in self.unsettled)

    @rule(queue=queues, count=st.integers(1, 4))
    def publish(self, queue: QueueName, count: int) -> None:
        async def publish_all() -> None:
            bodies = [b"%d" % (self.published + n) for n in range(count)]
            await asyncio.gather(*(self.broker.publish(queue, body) for body in bodies))

        self.runner.run(publish_all())
        for _ in range(count):
            self.messages[self.published] = queue
            self.published += 1
        self.acked_lately.clear()  # a publish is durable, and so is all before it

    @rule(queue=queues, limit=st.integers(1, 4))
    def get(self, queue: QueueName, limit: int) -> None:
        deliveries = self.runner.run(self.broker.get(queue, limit))
        expected = self.ready(queue)[:limit]
        assert [(int(d.body), d.redelivered) for d in deliveries] == [(n, n in self.seen) for n in expected]
        self.unsettled.update({int(d.body): d for d in deliveries})
        self.seen.update(expected)

    @precondition(lambda self: self.unsettled)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        n = data.draw(st.sampled_from(sorted(self.unsettled)))
        self.runner.run(self.broker.ack(self.unsettled.pop(n)))
        self.acked_lately[n] = self.messages.pop(n)

    @precondition(lambda self: self.unsettled)
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        n = data.draw(st.sampled_from(sorted(self.unsettled)))
        self.runner.run(self.broker.requeue(self.unsettled.pop(n)))

    @rule()
    def close_one_client(self) -> None:
        self.runner.run(self.broker.close())
        self.unsettled.clear()
        self.broker = self.all.broker()

    @rule()
    def reopen(self) -> None:
        async def again() -> None:
            await self.all.close()
            await self.file.close()
            await self.start()

        self.runner.run(again())
        self.unsettled.clear()
        self.acked_lately.clear()

    @rule()
    def crash(self) -> None:
        async def again() -> None:
            self.lives += 1
            for suffix in ("", "-wal"):
                shutil.copy(f"{self.path}{suffix}", self.folder / f"{self.lives}.db{suffix}")
            await self.file.close()
            await self.start()

        self.runner.run(again())
        self.unsettled.clear()
        found = self.runner.run(self.look())
        # An acknowledgement that no later publish made durable may or may not have been written.
        assert self.messages.items() <= found.items()
        assert found.items() <= (self.messages | self.acked_lately).items()
        self.seen = set(self.messages)
        self.acked_lately = dict(found.items() - self.messages.items())

    async def look(self) -> dict[int, QueueName]:
        """Return all messages; acknowledge those again that were.

        Whether they come back depends on the timing of threads. What later steps draw must not: Hypothesis
        rejects a test whose choices differ between runs of the same steps.
        """
        found: dict[int, QueueName] = {}
        for queue in (QueueName("a"), QueueName("b")):
            for delivery in await self.broker.get(queue, 1000):
                found[int(delivery.body)] = queue
                assert delivery.redelivered, "after a crash each message may have been handed out"
                if int(delivery.body) in self.messages:
                    await self.broker.requeue(delivery)
                else:
                    await self.broker.ack(delivery)
        return found

    @invariant()
    def depths_agree(self) -> None:
        for queue in (QueueName("a"), QueueName("b")):
            assert self.runner.run(self.broker.depth(queue)) == len(self.ready(queue))

    def teardown(self) -> None:
        self.runner.run(self.file.close())
        self.runner.close()
        shutil.rmtree(self.folder)


TestSqliteBrokerAgainstModel = SqliteBrokerAgainstModel.TestCase
TestSqliteBrokerAgainstModel.settings = settings(
    max_examples=30, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
