"""Group commit: operations during a write share the next write, which is retried until it succeeds."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from qlm.domain.errors import StoreUnavailableError
from qlm.domain.formats.extensions import LogExtensions, merged
from qlm.domain.ids import RequestId
from qlm.store.core.effects import Logged

Changes = Mapping[str, bytes | None]
"""New values by key; None deletes."""


@dataclass(slots=True, eq=False)
class Output:
    """Output of unfinished requests, for the token log."""

    logged: list[Logged] = field(default_factory=list)
    extended: dict[RequestId, LogExtensions] = field(default_factory=dict)

    def extend(self, extended: Mapping[RequestId, LogExtensions]) -> None:
        """Add extensions of logs."""
        for id, new in extended.items():
            self.extended[id] = merged(self.extended[id], new) if id in self.extended else new


@dataclass(slots=True, eq=False)
class Batch:
    """What one write writes.

    Attributes:
        chain: Where it is written.
        written: Done once it is written, or was given up.
        after: Batches of another chain that come before it.
        announcements: To be called once it is written.
        ids: The requests that it concerns.
    """

    chain: "WriteChain"
    written: asyncio.Future[None]
    after: set[asyncio.Future[None]] = field(default_factory=set)
    output: Output = field(default_factory=Output)
    changes: dict[str, bytes | None] = field(default_factory=dict)
    announcements: list[Callable[[], None]] = field(default_factory=list)
    ids: set[RequestId] = field(default_factory=set)
    durable: bool = False


class WriteChain:
    """Writes of batches, one after the other.

    Attributes:
        failure: Why the last write failed; None if it succeeded.
    """

    def __init__(
        self,
        write: Callable[[Batch], Awaitable[None]],
        done: Callable[[Batch], None],
        closing: asyncio.Event,
        retry_s: float,
    ) -> None:
        """Begin without a batch.

        Args:
            write: Writes a batch; called again if it fails.
            done: Called once a batch is written.
            closing: Set once failed writes are no longer retried.
            retry_s: Pause before a failed write is retried.
        """
        self.failure: Exception | None = None
        self._write = write
        self._written = done
        self._closing = closing
        self._retry_s = retry_s
        self._next: Batch | None = None
        self._task: asyncio.Task[None] | None = None

    def next_batch(self) -> Batch:
        """Return the batch of the next write, which begins in a later turn of the event loop."""
        if self._next is None:
            self._next = Batch(self, asyncio.get_running_loop().create_future())
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        return self._next

    async def finish(self) -> None:
        """Wait for the writes under way."""
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        while (batch := self._next) is not None:
            self._next = None
            await self._write_until_done(batch)
        self._task = None

    async def _write_until_done(self, batch: Batch) -> None:
        if batch.after:
            await asyncio.wait(batch.after)
        while True:
            try:
                await self._write(batch)
            except Exception as error:  # any error: the state in process is newer than the journal
                self.failure = error
                if self._closing.is_set():
                    _give_up(batch, error)
                    return
                await pause(self._closing, self._retry_s)
            else:
                self.failure = None
                self._written(batch)
                batch.written.set_result(None)
                return


async def pause(closing: asyncio.Event, for_s: float) -> None:
    """Wait, but no longer than until an event is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(for_s):
            await closing.wait()


def _give_up(batch: Batch, error: Exception) -> None:
    refused = StoreUnavailableError(f"the journal cannot be written: {error}")
    refused.__cause__ = error
    batch.written.set_exception(refused)
    batch.written.exception()  # marks it as retrieved: its callers may be gone
