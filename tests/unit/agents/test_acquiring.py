"""Pulls that a broker answers at once, on a real queue."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

from qlm.agents.core.events import LeaseAnswered, Pulled
from qlm.agents.shell.acquiring import Acquiring
from qlm.broker import codec
from qlm.broker.sqlite.broker import SqliteQueues
from qlm.broker.sqlite.file import SqliteFile
from qlm.domain.actions import Pull
from qlm.domain.ids import GroupId
from qlm.domain.shell.faults import FaultLog
from qlm.store.embedded.memory import MemoryStore
from support.flaky import until
from support.gateway import SystemClock
from support.plant import HOLDER
from support.requests import a_request

MESSAGES: Final = 200


class Turns:
    """Counts turns of the running loop."""

    def __init__(self) -> None:
        self.count = 0
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self.count += 1
        self._next = self._loop.call_soon(self._turn)

    def stop(self) -> None:
        """Count no more."""
        self._next.cancel()


async def test_messages_that_cause_the_next_pull_at_once_leave_turns_to_others(tmp_path: Path) -> None:
    """An agent does so with cancelled requests: it pulls the next."""
    file = await SqliteFile.open(tmp_path / "queue.db")
    queues = await SqliteQueues.open(file)
    broker, store, faults = queues.broker(), MemoryStore(SystemClock()), FaultLog()
    requests = [a_request(f"r{n}") for n in range(MESSAGES)]
    pull = Pull(group=GroupId("g"), cls=requests[0].cls, limit=1)
    bodies = map(codec.encode_request, requests)
    await asyncio.gather(*(broker.publish(pull.cls.queue, body) for body in bodies))
    turns, pulled_in, tasks = Turns(), list[int](), set[asyncio.Task[None]]()

    def post(event: Pulled | LeaseAnswered) -> None:
        if isinstance(event, Pulled) and event.messages:
            pulled_in.append(turns.count)
            acquiring.pull(pull, valid=True)

    def spawn(work: Coroutine[Any, Any, None]) -> None:
        tasks.add(asyncio.create_task(work))

    acquiring = Acquiring(HOLDER.instance, HOLDER, broker, store, faults, post, spawn, lambda _: None)
    try:
        acquiring.pull(pull, valid=True)
        await until(lambda: len(pulled_in) == MESSAGES, 60)
        await asyncio.gather(*tasks)
    finally:
        turns.stop()
        await queues.close()
        await file.close()
    assert max(map(pulled_in.count, pulled_in)) <= 2
