"""Connection to RabbitMQ that reconnects by itself."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import pika

from qlm.broker.rabbitmq.connection import Connection, LinkBrokenError, connect
from qlm.domain.errors import BrokerUnavailableError
from qlm.domain.shell.faults import FaultLog, text_of
from qlm.domain.shell.tasks import end_tasks

R = TypeVar("R")

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Pauses between attempts to connect: they double from `first_s` up to `max_s`, each with jitter."""

    first_s: float = 0.05
    max_s: float = 2.0

    def pauses_s(self, rng: random.Random) -> Iterator[float]:
        """Iterate over pauses endlessly; each is 50 to 100 % of its nominal length."""
        pause_s = self.first_s
        while True:
            yield pause_s * rng.uniform(0.5, 1.0)
            pause_s = min(2 * pause_s, self.max_s)


class LinkUser(Protocol):
    """User of a link."""

    async def up(self, connection: Connection) -> None:
        """Prepare a new connection, before calls to `Link.connection` get it.

        Raises:
            LinkBrokenError: The connection broke meanwhile, or the broker rejects the preparation.
        """
        ...

    def down(self, reason: LinkBrokenError) -> None:
        """Handle the loss of a connection that was up."""
        ...


class LossNotes(Protocol):
    """Takes notes of one link."""

    def lost(self, why: str) -> None:
        """Note that its connection is lost, or cannot be made again."""
        ...

    def restored(self) -> None:
        """Note that it is there again, or not needed any more."""
        ...


class Link:
    """Keeper of one open connection; lives in the event loop of the thread."""

    def __init__(
        self,
        parameters: pika.connection.Parameters,
        backoff: Backoff,
        rng: random.Random,
        name_of: Callable[[str], str] = str,
        faults: FaultLog | None = None,
        notes: LossNotes | None = None,
    ) -> None:
        """Prepare a link.

        Args:
            parameters: Where RabbitMQ is.
            backoff: Pauses between attempts to connect.
            rng: For the jitter of pauses.
            name_of: As for `connect`.
            faults: Failures of the process.
            notes: Takes losses of the connection.
        """
        self._notes = notes
        self._faults = faults or FaultLog()
        self._parameters = parameters
        self._name_of = name_of
        self._where = f"{parameters.host}:{parameters.port}"
        self._backoff = backoff
        self._rng = rng
        self._connection: Connection | None = None
        self._reconnected = asyncio.Event()
        self._reason = LinkBrokenError("not connected yet")
        self._keeper: asyncio.Task[None] | None = None

    async def start(self, user: LinkUser) -> None:
        """Connect, and from then on reconnect.

        Raises:
            LinkBrokenError: The first attempt failed; there is no other.
        """
        await self._connect(user)
        self._keeper = asyncio.get_running_loop().create_task(self._keep(user))

    async def connection(self, timeout_s: float) -> Connection:
        """Return the connection, waiting for a reconnect if it is lost.

        Raises:
            BrokerUnavailableError: There was no connection in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while self._connection is None or self._connection.lost.done():
                    self._reconnected.clear()
                    await self._reconnected.wait()
                return self._connection
        except TimeoutError:
            raise BrokerUnavailableError(f"RabbitMQ at {self._where} is away: {self._reason}") from None

    async def over(self, work: Callable[[Connection], Awaitable[R]], timeout_s: float) -> R:
        """Run idempotent work on the connection, again on the next one if it is lost meanwhile.

        Args:
            work: Work on a connection.
            timeout_s: Time limit for its beginning.

        Raises:
            BrokerUnavailableError: There was no connection in time, or the broker refused.
        """
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + timeout_s
        while True:
            connection = await self.connection(give_up_s - loop.time())
            try:
                return await work(connection)
            except LinkBrokenError as error:
                if not connection.lost.done():
                    raise BrokerUnavailableError(f"RabbitMQ at {self._where} refused: {error}") from error

    async def close(self) -> None:
        """Close permanently."""
        if self._keeper is not None:
            await end_tasks([self._keeper])
        self._there()
        if self._connection is not None:
            await self._connection.close()

    async def _connect(self, user: LinkUser) -> None:
        connection = await connect(self._parameters, self._name_of)
        try:
            await user.up(connection)
        except Exception:
            await connection.close()
            raise
        self._connection = connection
        self._reconnected.set()

    async def _keep(self, user: LinkUser) -> None:
        while self._connection is not None:
            self._reason = await asyncio.shield(self._connection.lost)
            self._connection = None
            try:
                user.down(self._reason)
            except Exception as error:  # a bug: without a new connection, all would wait for ever
                self._faults.note(_LOG, error, "the loss of a connection is not handled")
            self._away()
            await self._reconnect(user)
            self._there()

    async def _reconnect(self, user: LinkUser) -> None:
        for pause_s in self._backoff.pauses_s(self._rng):
            await asyncio.sleep(pause_s)
            try:
                await self._connect(user)
            except LinkBrokenError as error:
                self._reason = error
                self._away()
            except Exception as error:  # a bug: the next attempt may do
                self._faults.note(_LOG, error, "RabbitMQ at %s cannot be connected to", self._where)
                self._reason = LinkBrokenError(text_of(error))
            else:
                return

    def _away(self) -> None:
        if self._notes is not None:
            self._notes.lost(f"RabbitMQ at {self._where} is away: {self._reason}")

    def _there(self) -> None:
        if self._notes is not None:
            self._notes.restored()
