"""Typed, awaitable wrapper of pika, with one error for all broken channels and connections.

It lives in the event loop of the thread, not of the caller (see `bridge`).
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pika
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.exceptions import AMQPError, ChannelClosed, ConnectionClosed

NOT_FOUND: Final = 404
RESOURCE_LOCKED: Final = 405

_ANSWER_TIMEOUT_S: Final = 1.0


class LinkBrokenError(Exception):
    """Connection or channel that is lost.

    Attributes:
        code: AMQP reply code if the broker closed it with a reason, else 0.
    """

    def __init__(self, reason: str, code: int = 0) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True, slots=True)
class Got:
    """Message from basic.get, to be acknowledged by its tag on the same channel."""

    tag: int
    redelivered: bool
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishEvents:
    """Callbacks for the results of published messages.

    Attributes:
        confirmed: Called with (sequence number, multiple, ok); with `multiple`, for all up to that number.
        returned: Called with (sequence number, reason) before the confirm of a message without a queue.
    """

    confirmed: Callable[[int, bool, bool], None]
    returned: Callable[[int, str], None]


class Channel:
    """AMQP channel."""

    def __init__(self, raw: Any, name_of: Callable[[str], str]) -> None:
        """Wrap an open pika channel; `name_of` maps a queue to its name in RabbitMQ."""
        self._raw = raw
        self._name_of = name_of
        self._waiting: set[asyncio.Future[Any]] = set()
        self._empty: Callable[[], None] | None = None
        self._published = 0
        self.broken: LinkBrokenError | None = None
        self.on_broken: Callable[[], None] | None = None
        raw.add_on_close_callback(lambda _, error: self._break(_broken(error)))
        raw.add_callback(lambda _: self._got_nothing(), [pika.spec.Basic.GetEmpty], one_shot=False)

    async def declare(
        self, queue: str, arguments: Mapping[str, str | int], *, durable: bool = True, exclusive: bool = False
    ) -> int:
        """Create a queue unless it exists; return the number of its ready messages."""
        return await self._declare(queue, arguments=dict(arguments), durable=durable, exclusive=exclusive)

    async def depth(self, queue: str) -> int:
        """Count the ready messages of a queue; if there is none, the channel breaks with `NOT_FOUND`."""
        return await self._declare(queue, passive=True)

    async def delete(self, queue: str, *, if_empty: bool = False) -> None:
        """Delete a queue; if it must be empty (a classic one only) and is not, the channel breaks."""
        name = self._name_of(queue)
        await self._call(lambda done: self._raw.queue_delete(name, if_empty=if_empty, callback=done))

    async def private_queue(self) -> str:
        """Create a queue that keeps nothing and ends with the connection; return its name."""
        how = {"exclusive": True, "auto_delete": True, "arguments": {"x-max-length": 0}}
        frame = await self._call(lambda done: self._raw.queue_declare("", callback=done, **how))
        return str(frame.method.queue)

    async def bind(self, queue: str, exchange: str, key: str) -> None:
        """Let an exchange route messages with a key to a queue."""
        await self._call(
            lambda done: self._raw.queue_bind(queue, exchange, self._name_of(key), callback=done)
        )

    async def unbind(self, queue: str, exchange: str, key: str) -> None:
        """Undo `bind`."""
        await self._call(
            lambda done: self._raw.queue_unbind(queue, exchange, self._name_of(key), callback=done)
        )

    async def confirm(self, events: PublishEvents) -> None:
        """Enable publisher confirms on this channel."""

        def confirmed(frame: Any) -> None:
            ok = isinstance(frame.method, pika.spec.Basic.Ack)
            events.confirmed(frame.method.delivery_tag, frame.method.multiple, ok)

        def returned(_channel: Any, method: Any, properties: Any, _body: bytes) -> None:
            events.returned(int(properties.message_id), method.reply_text)

        self._raw.add_on_return_callback(returned)
        await self._call(lambda done: self._raw.confirm_delivery(confirmed, callback=done))

    def publish(self, queue: str, body: bytes, exchange: str = "") -> int:
        """Send a durable message to a queue, or with a key to an exchange; return its number, from 1."""
        self._check()
        self._published += 1
        properties = pika.BasicProperties(
            delivery_mode=pika.spec.PERSISTENT_DELIVERY_MODE, message_id=str(self._published)
        )
        self._raw.basic_publish(exchange, self._name_of(queue), body, properties, mandatory=True)
        return self._published

    async def get(self, queue: str) -> Got | None:
        """Take one message, or None from an empty queue. One call at a time."""
        name = self._name_of(queue)

        def start(done: Callable[[Got | None], None]) -> None:
            self._empty = lambda: done(None)
            self._raw.basic_get(
                name, lambda _, ok, _properties, body: done(Got(ok.delivery_tag, ok.redelivered, body))
            )

        got: Got | None = await self._call(start)
        return got

    def ack(self, tag: int) -> None:
        """Acknowledge a message got here."""
        self._check()
        self._raw.basic_ack(tag)

    def requeue(self, tag: int) -> None:
        """Return a message got here to its queue."""
        self._check()
        self._raw.basic_reject(tag, requeue=True)

    async def close(self) -> None:
        """Close; unacknowledged messages return to their queues."""
        if self.broken is not None or not self._raw.is_open:
            return
        closed = asyncio.Event()
        self._raw.add_on_close_callback(lambda *_: closed.set())
        self._raw.close()
        await closed.wait()

    def drop(self) -> None:
        """Begin to close."""
        if self.broken is None and self._raw.is_open:
            self._raw.close()

    async def _declare(self, queue: str, **how: Any) -> int:
        name = self._name_of(queue)
        frame = await self._call(lambda done: self._raw.queue_declare(name, callback=done, **how))
        return int(frame.method.message_count)

    async def _call(self, start: Callable[[Callable[[Any], None]], None]) -> Any:
        """Start an operation and wait for its answer, or for the end of the channel."""
        self._check()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.add(answer)
        try:
            start(lambda value: None if answer.done() else answer.set_result(value))
            return await answer
        except AMQPError as error:
            raise _broken(error) from error
        finally:
            self._waiting.discard(answer)

    def _check(self) -> None:
        if self.broken is not None:
            raise self.broken
        if not self._raw.is_open:
            raise LinkBrokenError("the channel is closing")

    def _got_nothing(self) -> None:
        if self._empty is not None:
            self._empty()

    def _break(self, error: LinkBrokenError) -> None:
        self.broken = error
        if self.on_broken is not None:
            self.on_broken()
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(LinkBrokenError(str(error), error.code))


class Connection:
    """AMQP connection."""

    def __init__(
        self, raw: Any, lost: asyncio.Future[LinkBrokenError], name_of: Callable[[str], str]
    ) -> None:
        """Use `connect` instead."""
        self._raw = raw
        self._name_of = name_of
        self.lost = lost
        self.blocked: str | None = None
        self._is_blocked = asyncio.Event()
        raw.add_on_connection_blocked_callback(lambda _, frame: self._set_blocked(str(frame.method.reason)))
        raw.add_on_connection_unblocked_callback(lambda *_: self._set_blocked(None))
        self.on_blocked: Callable[[str], None] | None = None
        self.on_unblocked: Callable[[], None] | None = None

    async def channel(self) -> Channel:
        """Open a channel."""
        if self.lost.done():
            raise self.lost.result()
        opened: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()

        def on_open(raw: Any) -> None:
            if opened.done():  # its caller has gone
                raw.close()
            else:
                opened.set_result(Channel(raw, self._name_of))

        try:
            self._raw.channel(on_open_callback=on_open)
        except AMQPError as error:
            raise _broken(error) from error
        either: set[asyncio.Future[Any]] = {opened, self.lost}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if opened.done():
            return opened.result()
        raise self.lost.result()

    def drop(self) -> None:
        """Begin to close; `lost` is set at the end."""
        if self._raw.is_open:
            self._raw.close()

    async def close(self) -> None:
        """Close and wait for the end; without an answer in time, disconnect."""
        self.drop()
        await asyncio.wait({self.lost}, timeout=_ANSWER_TIMEOUT_S)
        if not self.lost.done():  # RabbitMQ does not read from a connection that it has blocked
            self.hang_up()
            await self.lost

    def hang_up(self) -> None:
        """Disconnect at once; what is exclusive to the connection ends when RabbitMQ notices."""
        self.drop()  # pika disconnects only what is being closed
        if not self.lost.done():
            self._raw._adapter_disconnect_stream()  # pika has no public way to hang up

    async def until_blocked(self) -> None:
        """Wait until RabbitMQ says that it reads no more from this connection, which publishes."""
        await self._is_blocked.wait()

    def _set_blocked(self, reason: str | None) -> None:
        self.blocked = reason
        if reason is None:
            self._is_blocked.clear()
            if self.on_unblocked is not None:
                self.on_unblocked()
        else:
            self._is_blocked.set()
            if self.on_blocked is not None:
                self.on_blocked(reason)


async def connect(parameters: pika.connection.Parameters, name_of: Callable[[str], str] = str) -> Connection:
    """Open a connection in the running loop.

    Args:
        parameters: Parameters of pika.
        name_of: Maps a queue to its name in RabbitMQ.

    Raises:
        LinkBrokenError: The broker does not answer, or rejects the connection.
    """
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[None] = loop.create_future()
    lost: asyncio.Future[LinkBrokenError] = loop.create_future()

    def on_open(_: Any) -> None:
        if not opened.done():
            opened.set_result(None)

    def on_lost(_: Any, error: BaseException) -> None:
        if not lost.done():
            lost.set_result(_broken(error))

    def on_failed(_: Any, error: BaseException) -> None:
        if not opened.done():
            opened.set_exception(_broken(error))

    raw = AsyncioConnection(
        parameters,
        on_open_callback=on_open,
        on_open_error_callback=on_failed,
        on_close_callback=on_lost,
        custom_ioloop=loop,
    )
    try:
        await asyncio.shield(opened)
    except asyncio.CancelledError:
        with contextlib.suppress(AMQPError, LinkBrokenError, TimeoutError):
            raw.close()
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                await opened
        raise
    return Connection(raw, lost, name_of)


def _broken(error: BaseException) -> LinkBrokenError:
    """Return the cause of a broken link, which pika wraps in several layers."""
    wrapped = (getattr(error, "exception", None), *getattr(error, "exceptions", ()), *error.args)
    for cause in reversed(wrapped):
        if isinstance(cause, BaseException):
            return _broken(cause)
    if isinstance(error, ConnectionClosed | ChannelClosed):
        return LinkBrokenError(str(error.reply_text), int(error.reply_code))
    return LinkBrokenError(str(error) or type(error).__name__)
