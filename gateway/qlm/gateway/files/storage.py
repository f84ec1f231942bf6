"""Files and batches of one gateway, together."""

import asyncio
import errno
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import BinaryIO, Final, ParamSpec, TypeVar

from qlm.domain.errors import StorageUnavailableError
from qlm.domain.shell.outage import Outage
from qlm.gateway.files.limits import FileLimits
from qlm.gateway.files.opened import Opened
from qlm.gateway.files.port import BatchStore, FileStore

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often a gateway looks and writes: seldom where each call costs.

    Attributes:
        scan_s: Time between two looks for batches that no gateway runs, seconds.
        look_s: Time between two looks at whether a batch is cancelled or paused, seconds.
        note_s: Least time between two notes of a batch's progress, seconds.
        sweep_s: Time between two deletions of what has expired, seconds.
        rest_s: Least time between two looks at a batch that is paused or waits for its turn, seconds.
    """

    scan_s: float = 0.5
    look_s: float = 0.5
    note_s: float = 0.0
    sweep_s: float = 60.0
    rest_s: float = 5.0


DISK_PACE: Final = Pace()


_BUGS: Final = frozenset({errno.EBADF, errno.EEXIST})
"""Failures of a call that no repair of the disk would mend."""


@dataclass(frozen=True, slots=True)
class Storage:
    """Files and batches in one place.

    Attributes:
        files: The files.
        batches: The batches.
        limits: Limits of both.
        pace: How often they are looked at.
        executor: Threads for their calls alone: one that hangs keeps no other work of the process waiting.
        outage: Log of its outages.
    """

    files: FileStore
    batches: BatchStore
    limits: FileLimits
    executor: Executor
    pace: Pace = DISK_PACE
    outage: Outage = field(default_factory=partial(Outage, "storage of files"))

    async def call(self, what: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call what blocks, in a thread.

        Raises:
            StorageUnavailableError: The storage is away, refuses, or is full.
            FileNotFoundError: There is no such file.
        """
        loop, call = asyncio.get_running_loop(), partial(what, *args, **kwargs)
        try:
            found = await loop.run_in_executor(self.executor, call)
        except StorageUnavailableError as error:
            self.outage.failed(loop.time(), error)
            raise
        except OSError as error:
            if isinstance(error, FileNotFoundError) or error.errno in _BUGS:
                raise
            self.outage.failed(loop.time(), error)
            raise StorageUnavailableError(f"the disk for files and batches: {error.strerror}") from error
        self.outage.worked(loop.time())
        return found

    async def open(self, opens: Callable[P, BinaryIO], *args: P.args, **kwargs: P.kwargs) -> BinaryIO:
        """Open a file in a thread, as `call` does; it is closed if the caller is cancelled meanwhile."""
        opened = Opened()

        @wraps(opens)
        def keep() -> BinaryIO:
            return opened.keep(partial(opens, *args, **kwargs))

        try:
            return await self.call(keep)
        except asyncio.CancelledError:
            opened.give_up()
            raise

    def close_later(self, file: BinaryIO) -> None:
        """Close a file in a thread, since a read of it in another thread holds that up until it ends."""
        asyncio.get_running_loop().run_in_executor(self.executor, file.close)
