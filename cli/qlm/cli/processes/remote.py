"""Worker's end: the ports of the queue and the state, whose calls the owner answers."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from qlm.cli.processes.answering import RETRIES, STORE
from qlm.cli.processes.frames import Link, Message
from qlm.cli.processes.shared_retries import plain_call
from qlm.domain import errors
from qlm.domain.errors import (
    BrokerUnavailableError,
    DeliveryLostError,
    QlmError,
    StoreUnavailableError,
)
from qlm.domain.ids import QueueName, RequestId
from qlm.domain.output import OutputSlice
from qlm.domain.ports.broker import Broker, Delivery
from qlm.domain.ports.store import Store
from qlm.gateway.core.sdk_retries import SdkCall

R = TypeVar("R")

GONE: Final = "the process with the queue and the state has ended"


class Calls:
    """Calls under way, and open feeds, over one link."""

    def __init__(self) -> None:
        self.link: Link | None = None
        self._numbers = itertools.count(1)
        self._targets = itertools.count(STORE + 1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._feeds: dict[int, asyncio.Queue[Message]] = {}

    def receive(self, message: Message) -> bool:
        """Take an answer; False for a message that is none."""
        match message:
            case ("done", int(number), answer):
                if (future := self._answers.pop(number, None)) is not None and not future.done():
                    future.set_result(answer)
            case ("failed", int(number), error):
                if (future := self._answers.pop(number, None)) is not None and not future.done():
                    future.set_exception(_made(error))
            case ("item" | "end", int(number), _):
                if number in self._feeds:
                    self._feeds[number].put_nowait(message)
            case _:
                return False
        return True

    def lost(self) -> None:
        """Fail what is under way: the owner has ended."""
        answers, self._answers = self._answers, {}
        for future in answers.values():
            if not future.done():
                future.set_exception(ConnectionError(GONE))
        for feed in self._feeds.values():
            feed.put_nowait(("end", 0, None))

    @property
    def open(self) -> bool:
        """True if the owner can be reached."""
        return self.link is not None and self.link.open

    def next_target(self) -> int:
        """Return the number of a new client of the queue."""
        return next(self._targets)

    async def call(self, target: int, name: str, *arguments: Any, **named: Any) -> Any:
        """Call the owner.

        Raises:
            ConnectionError: It has ended.
            QlmError: What the call raised there.
        """
        if self.link is None or not self.open:
            raise ConnectionError(GONE)
        number = next(self._numbers)
        future = self._answers[number] = asyncio.get_running_loop().create_future()
        self.link.send("call", number, target, name, arguments, named)
        try:
            return await future
        finally:
            self._answers.pop(number, None)

    def tell(self, target: int, name: str, *arguments: Any) -> None:
        """Call the owner, and wait for no answer."""
        if self.link is not None and self.open:
            self.link.send("call", next(self._numbers), target, name, arguments, {})

    async def feed(self, name: str, *arguments: Any) -> AsyncIterator[Any]:
        """Iterate over a feed of the state."""
        if self.link is None or not self.open:
            raise StoreUnavailableError(GONE)
        number = next(self._numbers)
        items = self._feeds[number] = asyncio.Queue[Message]()
        self.link.send("open", number, name, arguments)
        try:
            while True:
                kind, _, item = await items.get()
                if kind == "item":
                    yield item
                elif item is not None:
                    raise _made(item)
                elif not self.open:
                    raise StoreUnavailableError(GONE)
                else:
                    return
        finally:
            del self._feeds[number]
            self.link.send("close", number)


def _made(plain: tuple[str, str, dict[str, Any]]) -> Exception:
    name, message, fields = plain
    cls = getattr(errors, name, None)
    if not (isinstance(cls, type) and issubclass(cls, QlmError)):
        return RuntimeError(message)
    error = cls.__new__(cls)
    Exception.__init__(error, message)
    vars(error).update(fields)
    return error


class _RemoteStore:
    """Store of the owner; each operation is a call of the same name."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def close(self) -> None:
        """Close nothing: the state is the owner's."""

    def append_now(self, entries: object) -> None:
        """Do nothing: another process cannot answer at once."""

    def lease_now(self, metadata: object, holder: object, group: object) -> None:
        """Do nothing, as `append_now`."""

    async def outputs(self, watcher: object) -> AsyncIterator[Sequence[OutputSlice]]:
        """Iterate over announced output."""
        async for slices in self._calls.feed("outputs", watcher):
            yield [OutputSlice._make(each) for each in slices]

    def notices(self, instance: object) -> AsyncIterator[Any]:
        """Iterate over the notices of an instance."""
        return self._calls.feed("notices", instance)

    def wakeups(self) -> AsyncIterator[Any]:
        """Iterate over the wakeups of controllers."""
        return self._calls.feed("wakeups")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(Store, name):
            raise AttributeError(name)

        async def operation(*arguments: Any, **named: Any) -> Any:
            try:
                return await self._calls.call(STORE, name, *arguments, **named)
            except ConnectionError as error:
                raise StoreUnavailableError(str(error)) from error

        setattr(self, name, operation)  # the next access finds it directly
        return operation


def remote_store(calls: Calls) -> Store:
    """Return the store of the owner."""
    return cast("Store", _RemoteStore(calls))


@dataclass(frozen=True, slots=True, eq=False)
class RemoteTag:
    """Handle of one delivery, equal only to itself; `number` is the owner's."""

    number: int


class RemoteRetries:
    """Requests whose clients ran into their timeouts, as the owner knows them of all workers."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def left(self, call: SdkCall, id: RequestId, now_ns: int, grace_ns: int) -> None:
        """See `Retries`."""
        self._calls.tell(RETRIES, "left", plain_call(call), id, now_ns, grace_ns)

    async def take(self, call: SdkCall, now_ns: int) -> RequestId | None:
        """See `Retries`."""
        try:
            return cast("RequestId | None", await self._calls.call(RETRIES, "take", plain_call(call), now_ns))
        except ConnectionError as error:
            raise StoreUnavailableError(str(error)) from error


class RemoteBroker(Broker):
    """Client of the owner's queue; its messages return when it is closed, or this process ends."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._target = calls.next_target()
        self._tags: set[RemoteTag] = set()
        self._returns: set[asyncio.Future[Any]] = set()
        self._open = True

    async def publish(self, queue: QueueName, body: bytes) -> None:
        """See the port."""
        await self._call("publish", queue, body)

    async def get(self, queue: QueueName, limit: int = 1) -> Sequence[Delivery]:
        """See the port."""
        return await self._take("get", queue, limit)

    async def peek(self, queue: QueueName, look: Callable[[bytes], R], limit: int) -> Sequence[R]:
        """See the port; bodies come here, and `look` is called in a thread."""
        bodies = await self._call("peek", queue, limit)
        return await asyncio.to_thread(lambda: [look(body) for body in bodies])

    async def pick(
        self, queue: QueueName, wanted: Callable[[bytes], bool], limit: int, *, looks_max: int
    ) -> Sequence[Delivery]:
        """See the port; messages with equal bodies are equally wanted."""
        bodies = await self._call("peek", queue, looks_max)
        chosen = await asyncio.to_thread(lambda: frozenset(body for body in bodies if wanted(body)))
        return await self._take("pick", queue, chosen, limit, looks_max)

    async def ack(self, delivery: Delivery) -> None:
        """See the port."""
        await self._call("ack", self._settle(delivery))

    async def requeue(self, delivery: Delivery) -> None:
        """See the port."""
        await self._call("requeue", self._settle(delivery))

    async def depth(self, queue: QueueName) -> int:
        """See the port."""
        return int(await self._call("depth", queue))

    async def queues(self) -> Sequence[QueueName]:
        """See the port."""
        return cast("Sequence[QueueName]", await self._call("queues"))

    async def delete_unused(self, queues: Sequence[QueueName]) -> Sequence[QueueName]:
        """See the port."""
        return cast("Sequence[QueueName]", await self._call("delete_unused", queues))

    async def probe(self) -> None:
        """See the port."""
        await self._call("probe")

    async def close(self) -> None:
        """See the port."""
        if self._open:
            self._open = False
            # The owner takes back the messages of a client that it has lost.
            with suppress(ConnectionError, BrokerUnavailableError):
                await self._calls.call(self._target, "close")

    async def _call(self, name: str, *arguments: Any) -> Any:
        if not self._open:
            raise BrokerUnavailableError("this client of the queue is closed")
        try:
            return await self._calls.call(self._target, name, *arguments)
        except ConnectionError as error:
            raise BrokerUnavailableError(str(error)) from error

    async def _take(self, name: str, queue: QueueName, *arguments: Any) -> Sequence[Delivery]:
        taking = asyncio.ensure_future(self._call(name, queue, *arguments))
        try:
            taken = await asyncio.shield(taking)
        except asyncio.CancelledError:
            self._return(self._put_back(taking))
            raise
        deliveries = [Delivery(queue, RemoteTag(number), body, again) for number, body, again in taken]
        self._tags.update(cast("RemoteTag", delivery.tag) for delivery in deliveries)
        return deliveries

    def _return(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._returns.add(task)
        task.add_done_callback(self._returns.discard)

    async def _put_back(self, taking: "asyncio.Future[Any]") -> None:
        """Return the messages that a cancelled call has taken."""
        with suppress(QlmError):
            for number, _, _ in await taking:
                await self._call("requeue", number)

    def _settle(self, delivery: Delivery) -> int:
        tag = delivery.tag
        if not isinstance(tag, RemoteTag) or tag not in self._tags:
            raise DeliveryLostError(f"a message of {delivery.queue} is not handed out here any more: {tag}")
        if not self._calls.open:
            self._tags.clear()
            raise DeliveryLostError(f"{GONE}; it returns the messages that were handed out here")
        self._tags.discard(tag)
        return tag.number
