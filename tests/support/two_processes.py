"""Queue and state behind a link, as a worker of `qlm serve` reaches them; both ends in one process."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from qlm.cli.processes.answering import Answering
from qlm.cli.processes.frames import Link
from qlm.cli.processes.remote import Calls
from qlm.cli.processes.shared_retries import SharedRetries
from qlm.domain.ports.broker import Broker
from qlm.domain.ports.store import Store


@asynccontextmanager
async def linked(
    store: Store, open_broker: Callable[[], Awaitable[Broker]], retries: SharedRetries | None = None
) -> AsyncIterator[Calls]:
    """Give a worker's end of a link to these, while inside; then the worker is gone."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    answering, calls = Answering(store, open_broker, retries or SharedRetries()), Calls()

    def take(message: tuple[object, ...]) -> None:
        assert calls.receive(message)

    _, answering.link = await loop.create_unix_connection(
        lambda: Link(answering.receive, lambda: None), sock=ours
    )
    _, calls.link = await loop.create_unix_connection(lambda: Link(take, calls.lost), sock=theirs)
    try:
        yield calls
    finally:
        calls.link.close()
        await answering.end()
        answering.link.close()
