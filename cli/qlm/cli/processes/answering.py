"""Owner's end: calls of a worker on the queue and the state, answered; and feeds, pushed.

A worker that reads its answers too slowly has its feeds wait and its further calls unread, so what is kept
for it is bounded by the calls that it has made.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

from qlm.cli.processes.frames import Link, Message
from qlm.cli.processes.shared_retries import SharedRetries
from qlm.cli.processes.watched import WatchedRequests
from qlm.domain import errors
from qlm.domain.errors import DeliveryLostError, QlmError
from qlm.domain.ids import QueueName
from qlm.domain.output import OutputSlice
from qlm.domain.ports.broker import Broker, Delivery
from qlm.domain.ports.store import Store
from qlm.domain.shell.tasks import end_tasks

CALLS_MAX: Final = 10_000
"""Unanswered calls of one worker; further ones wait unread."""

END_S: Final = 5.0
"""Time for calls of a worker that has ended, which may have taken messages."""

STORE: Final = 0
"""Target of calls on the state; larger numbers are clients of the queue, as the worker numbers them."""

RETRIES: Final = -1
"""Target of calls on what workers share of clients that ran into their timeouts."""

_FEEDS: Final = frozenset({"outputs", "notices", "wakeups"})


def plain_error(error: BaseException) -> tuple[str, str, dict[str, Any]]:
    """Return an error as plain data: the name of its class, its message and its fields."""
    if isinstance(error, QlmError) and getattr(errors, type(error).__name__, None) is type(error):
        return type(error).__name__, str(error), dict(vars(error))
    return "RuntimeError", repr(error), {}


class _Client:
    """Client of the queue, whose deliveries are numbered."""

    def __init__(self, broker: Broker, numbers: "itertools.count[int]") -> None:
        self._broker = broker
        self._numbers = numbers
        self._deliveries: dict[int, Delivery] = {}

    async def publish(self, queue: QueueName, body: bytes) -> None:
        await self._broker.publish(queue, body)

    async def get(self, queue: QueueName, limit: int) -> list[tuple[int, bytes, bool]]:
        return self._numbered(await self._broker.get(queue, limit))

    async def peek(self, queue: QueueName, limit: int) -> Sequence[bytes]:
        return await self._broker.peek(queue, bytes, limit)

    async def pick(
        self, queue: QueueName, bodies: frozenset[bytes], limit: int, looks_max: int
    ) -> list[tuple[int, bytes, bool]]:
        picked = await self._broker.pick(queue, bodies.__contains__, limit, looks_max=looks_max)
        return self._numbered(picked)

    async def ack(self, number: int) -> None:
        await self._broker.ack(self._delivery(number))
        self._deliveries.pop(number, None)

    async def requeue(self, number: int) -> None:
        await self._broker.requeue(self._delivery(number))
        self._deliveries.pop(number, None)

    async def depth(self, queue: QueueName) -> int:
        return await self._broker.depth(queue)

    async def queues(self) -> Sequence[QueueName]:
        return await self._broker.queues()

    async def delete_unused(self, queues: Sequence[QueueName]) -> Sequence[QueueName]:
        return await self._broker.delete_unused(queues)

    async def probe(self) -> None:
        await self._broker.probe()

    async def close(self) -> None:
        self._deliveries.clear()
        await self._broker.close()

    def _numbered(self, deliveries: Sequence[Delivery]) -> list[tuple[int, bytes, bool]]:
        numbered = []
        for delivery in deliveries:
            number = next(self._numbers)
            self._deliveries[number] = delivery
            numbered.append((number, delivery.body, delivery.redelivered))
        return numbered

    def _delivery(self, number: int) -> Delivery:
        if number not in self._deliveries:
            raise DeliveryLostError(f"a message is not handed out here any more: {number}")
        return self._deliveries[number]


class Answering:
    """Answers to one worker; `receive` takes its messages, `end` takes back what it held.

    Args:
        store: The state.
        open_broker: Opens a client of the queue.
        retries: What it shares with other workers of clients that ran into their timeouts.
    """

    def __init__(
        self, store: Store, open_broker: Callable[[], Awaitable[Broker]], retries: SharedRetries
    ) -> None:
        self.link: Link | None = None
        self._store = store
        self._open_broker = open_broker
        self._retries = retries
        self._numbers = itertools.count(1)
        self._clients: dict[int, asyncio.Future[_Client]] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._feeds: dict[int, asyncio.Task[None]] = {}
        self._watched = WatchedRequests()

    def receive(self, message: Message) -> None:
        """Begin to answer a message of the worker."""
        match message:
            case ("call", int(number), int(target), str(name), arguments, named):
                self._begin(self._answer(number, self._call(target, name, arguments, named)))
            case ("open", int(number), str(name), arguments) if name in _FEEDS:
                feed = asyncio.get_running_loop().create_task(self._push(number, name, arguments))
                self._feeds[number] = feed
                feed.add_done_callback(lambda _: self._feeds.pop(number, None))
            case ("close", int(number)):
                if (open_feed := self._feeds.get(number)) is not None:
                    self._begin(_end(open_feed))

    async def end(self) -> None:
        """End its feeds, return the messages that it took from queues, and let it watch no request any more.

        Calls that have begun go on: what was accepted is stored.
        """
        await end_tasks(list(self._feeds.values()))
        if self._calls:
            await asyncio.wait(self._calls, timeout=END_S)
        for opening in self._clients.values():
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                await opening.result().close()
        await self._watched.unwatch_all(self._store)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._calls.add(task)
        task.add_done_callback(self._done)
        if len(self._calls) == CALLS_MAX and self.link is not None:
            self.link.pause_reading(True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        if len(self._calls) == CALLS_MAX - 1 and self.link is not None:
            self.link.pause_reading(False)

    async def _call(self, target: int, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        port = await self._port(target)
        if name.startswith("_") or (target == STORE and name == "close"):
            raise RuntimeError(f"no call of a worker: {name}")
        answer = await getattr(port, name)(*arguments, **named)
        if target == STORE:
            self._watched.note_call(name, arguments, answer)
        return answer

    async def _port(self, target: int) -> object:
        if target == STORE:
            return self._store
        return self._retries if target == RETRIES else await self._client(target)

    async def _client(self, target: int) -> _Client:
        if target not in self._clients:
            self._clients[target] = asyncio.ensure_future(self._opened())
        return await self._clients[target]

    async def _opened(self) -> _Client:
        return _Client(await self._open_broker(), self._numbers)

    async def _answer(self, number: int, work: Awaitable[Any]) -> None:
        assert self.link is not None
        try:
            answer = await work
        except Exception as error:
            self.link.send("failed", number, plain_error(error))
        else:
            self.link.send("done", number, answer)
        if self.link.behind:
            await self.link.writable()

    async def _push(self, number: int, name: str, arguments: tuple[Any, ...]) -> None:
        assert self.link is not None
        items: AsyncIterator[Any] = getattr(self._store, name)(*arguments)
        plain = _plain_slices if name == "outputs" else _same
        try:
            async for item in items:
                await self.link.writable()
                if name == "outputs":
                    self._watched.note_outputs(arguments[0], item)
                self.link.send("item", number, plain(item))
        except Exception as error:
            self.link.send("end", number, plain_error(error))
        else:
            self.link.send("end", number, None)


async def _end(feed: asyncio.Task[None]) -> None:
    await end_tasks([feed])


def _plain_slices(slices: Sequence[OutputSlice]) -> list[tuple[Any, ...]]:
    return list(map(tuple, slices))


def _same(item: Any) -> Any:
    return item
