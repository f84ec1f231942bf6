"""A journal in memory that survives its store, and stores on it."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from contract.suites.store.values import (
    A,
    leased,
    metadata,
)
from qlm.domain.errors import StoreUnavailableError
from qlm.domain.lease import Epoch
from qlm.domain.outcome import Outcome
from qlm.domain.output import AppendResult, LogEntry
from qlm.domain.request import RequestRecord
from qlm.store.core.limits import StoreLimits
from qlm.store.embedded.store import EmbeddedStore
from support.damaged import any_damage


class SystemClock:
    def now_ns(self) -> int:
        return time.time_ns()


class DictJournal:
    """Journal in memory that survives the store, as a file does; its writes can be blocked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[str, bytes] = {}
        self.durable_writes = 0
        self.writes = 0
        self.open = asyncio.Event()
        self.open.set()
        self.error: Exception | None = None
        self.refused_prefix: str | None = None

    def load(self) -> Sequence[tuple[str, bytes]]:
        return list(self.entries.items())

    def warnings(self) -> Sequence[str]:
        return ()

    async def write(
        self, puts: Sequence[tuple[str, bytes]], deletes: Sequence[str] = (), *, durable: bool = False
    ) -> None:
        self.writes += 1
        await self.open.wait()
        if self.error is not None:
            raise self.error
        if self.refused_prefix is not None and any(key.startswith(self.refused_prefix) for key, _ in puts):
            raise StoreUnavailableError("disk full")
        self.entries.update(puts)
        for key in deletes:
            self.entries.pop(key, None)
        self.durable_writes += durable


async def opened(journal: DictJournal, limits: StoreLimits | None = None) -> EmbeddedStore:
    """Open a store, damaged or not; the one before is simply dropped, as by a kill -9."""
    return await EmbeddedStore.open(SystemClock(), journal, limits, consent=any_damage, retry_s=0.005)


async def put_tokens(
    store: EmbeddedStore, n: int, epoch: Epoch, offset: int, *token_ids: int, end: Outcome | None = None
) -> AppendResult:
    entry = LogEntry(
        id=metadata(n).id,
        epoch=epoch,
        offset=offset,
        token_ids=token_ids,
        outcome=end,
        detail="why" if end else "",
    )
    return (await store.append([entry]))[0]


async def ended_request(store: EmbeddedStore, n: int) -> RequestRecord:
    epoch = await leased(store, n, A)
    await put_tokens(store, n, epoch, 0, 5, 6)
    await put_tokens(store, n, epoch, 2, 7, end=Outcome.STOP)
    record = await store.record(metadata(n).id)
    assert record is not None
    return record


def token_files(journal: DictJournal) -> list[Path]:
    return sorted(journal.path.parent.glob("*-tokens.*"))
