"""Mark of the deployment that uses a RabbitMQ: the last message of a queue, which stays there.

A member holds a private queue that is bound under the id of the deployment, as users of a queue do (`usage`):
the binding ends with its connection.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import orjson

from qlm.broker.rabbitmq.bridge import Bridge
from qlm.broker.rabbitmq.broker import RabbitSettings
from qlm.broker.rabbitmq.connection import NOT_FOUND, Channel, Connection, LinkBrokenError, connect
from qlm.broker.rabbitmq.registry import locked
from qlm.broker.rabbitmq.usage import EXCHANGE, reaches_a_queue
from qlm.broker.threads import share_interpreter
from qlm.broker.topology import DEPLOYMENT, queue_in
from qlm.domain.errors import BrokerUnavailableError, UndecodableDataError
from qlm.domain.ports.deployment import DeploymentMark, MarkedServer

R = TypeVar("R")

CALL_TIMEOUT_S: Final = 10.0
"""Time limit of a call, connecting included."""


class RabbitMark(MarkedServer):
    """A RabbitMQ as bearer of a deployment's mark, over one connection; a lost one is made anew."""

    def __init__(self, settings: RabbitSettings, rng: random.Random) -> None:
        """Prepare; the first call connects.

        Args:
            settings: As those of the broker.
            rng: Source of randomness for the pauses while another process reads the mark.

        Raises:
            InvalidValueError: The URL cannot be read.
        """
        parameters = settings.parameters()
        vhost = "" if parameters.virtual_host == "/" else parameters.virtual_host
        self._address = f"amqp://{parameters.host}:{parameters.port}/{vhost}"
        share_interpreter()
        self._member = _Member(settings, rng)
        self._bridge = Bridge("qlm-deployment")
        self._turn = asyncio.Lock()

    @property
    def address(self) -> str:
        return self._address

    async def look(self) -> DeploymentMark | None:
        return await self._call(self._member.look)

    async def has_members(self, id: str) -> bool:
        return await self._call(partial(_has_members, id=id))

    async def join(self, mark: DeploymentMark, instead_of: str | None = None) -> bool:
        return await self._call(partial(self._member.join, mark=mark, instead_of=instead_of))

    async def renew(self, id: str) -> bool:
        return await self._call(partial(self._member.renew, id=id))

    async def leave(self, id: str) -> None:
        await self._call(partial(self._member.leave, id=id))

    async def close(self) -> None:
        if self._bridge.is_open:
            await self._bridge.call(self._member.close)
            await self._bridge.close()

    async def _call(self, work: Callable[[Connection], Awaitable[R]]) -> R:
        async with self._turn:
            return await self._bridge.call(partial(self._work, work))

    async def _work(self, work: Callable[[Connection], Awaitable[R]]) -> R:
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await work(await self._member.connection())
        except (LinkBrokenError, TimeoutError) as error:
            why = str(error) or f"no answer in {CALL_TIMEOUT_S:g} s"
            raise BrokerUnavailableError(f"RabbitMQ at {self._address} cannot be used: {why}") from error


class _Member:
    """Membership of one process; lives in the event loop of the thread."""

    def __init__(self, settings: RabbitSettings, rng: random.Random) -> None:
        self._settings = settings
        self._rng = rng
        self._connection: Connection | None = None
        self._private = ""
        self._id = ""

    async def connection(self) -> Connection:
        """Return the connection, a new one if it was lost: membership ended with the former."""
        if self._connection is None or self._connection.lost.done():
            name_of = partial(queue_in, self._settings.deployment)
            self._private = self._id = ""
            parameters = self._settings.parameters()
            try:
                self._connection = await connect(parameters, name_of)
            except LinkBrokenError as error:
                where = f"{parameters.host}:{parameters.port}"
                raise BrokerUnavailableError(f"no RabbitMQ could be reached at {where}: {error}") from error
        return self._connection

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def look(self, connection: Connection) -> DeploymentMark | None:
        async with self._locked(connection):
            return await self._read(connection)

    async def join(self, connection: Connection, mark: DeploymentMark, instead_of: str | None) -> bool:
        async with self._locked(connection):
            present = await self._read(connection)
            if present is None or (
                present.id != mark.id
                and present.id == instead_of
                and not await _has_members(connection, present.id)
            ):
                await self._write(connection, mark)
            elif present.id != mark.id:
                return False
            await self._bind(connection, mark.id)
        return True

    async def renew(self, connection: Connection, id: str) -> bool:
        # No other deployment replaces the mark of one that has members, so that to see one is enough.
        if self._id == id and await _is_marked(connection):
            return True
        async with self._locked(connection):
            present = await self._read(connection)
            if present is None or present.id != id:
                return False
            await self._bind(connection, id)
        return True

    async def leave(self, connection: Connection, id: str) -> None:
        if self._id == id:
            async with _channel(connection) as channel:
                await channel.unbind(self._private, EXCHANGE, _key(id))
            self._id = ""

    async def _bind(self, connection: Connection, id: str) -> None:
        async with _channel(connection) as channel:
            if not self._private:
                self._private = await channel.private_queue()
            await channel.bind(self._private, EXCHANGE, _key(id))
            if self._id not in ("", id):
                await channel.unbind(self._private, EXCHANGE, _key(self._id))
        self._id = id

    def _locked(self, connection: Connection) -> contextlib.AbstractAsyncContextManager[None]:
        return locked(connection, DEPLOYMENT, CALL_TIMEOUT_S, self._rng)

    async def _read(self, connection: Connection) -> DeploymentMark | None:
        async with _channel(connection) as channel:
            await self._declare(channel)
            bodies = []
            tags = []
            while got := await channel.get(DEPLOYMENT):
                bodies.append(got.body)
                tags.append(got.tag)
            for tag in tags:
                channel.requeue(tag)
            await channel.depth(DEPLOYMENT)  # answered when they are back
        return _latest(bodies)

    async def _write(self, connection: Connection, mark: DeploymentMark) -> None:
        body = orjson.dumps({"id": mark.id, "store": mark.partner})
        async with _channel(connection) as channel:
            if not await reaches_a_queue(channel, DEPLOYMENT, body, ""):
                raise LinkBrokenError(f"the queue {DEPLOYMENT} took no message")
        async with _channel(connection) as channel:  # the former ones go after the new one is safe
            tags = []
            while got := await channel.get(DEPLOYMENT):
                tags.append(got.tag)
            for tag in tags[:-1]:
                channel.ack(tag)
            channel.requeue(tags[-1])
            await channel.depth(DEPLOYMENT)

    async def _declare(self, channel: Channel) -> None:
        await channel.declare(DEPLOYMENT, self._settings.kind.arguments())


@contextlib.asynccontextmanager
async def _channel(connection: Connection) -> AsyncIterator[Channel]:
    channel = await connection.channel()
    try:
        yield channel
    finally:
        await channel.close()


async def _is_marked(connection: Connection) -> bool:
    """Return whether a mark is there; False also while another process reads it."""
    try:
        async with _channel(connection) as channel:
            return await channel.depth(DEPLOYMENT) > 0
    except LinkBrokenError as error:
        if error.code == NOT_FOUND:
            return False
        raise


async def _has_members(connection: Connection, id: str) -> bool:
    async with _channel(connection) as channel:
        return await reaches_a_queue(channel, _key(id))


def _key(id: str) -> str:
    return f"qlm.member.{id}"


def _latest(bodies: Sequence[bytes]) -> DeploymentMark | None:
    """Return the latest mark among messages; those behind it may be of another program.

    Raises:
        UndecodableDataError: None of them is a mark.
    """
    failed: UndecodableDataError | None = None
    for body in reversed(bodies):
        try:
            return _decoded(body)
        except UndecodableDataError as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return None


def _decoded(body: bytes) -> DeploymentMark:
    try:
        plain = orjson.loads(body)
        return DeploymentMark(id=str(plain["id"]), partner=str(plain["store"]))
    except (ValueError, KeyError, TypeError) as error:
        raise UndecodableDataError(f"the message {body!r:.200} of {DEPLOYMENT} cannot be read") from error
