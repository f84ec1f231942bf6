"""Embedded queue and state in the files of a folder."""

from pathlib import Path
from typing import Final

from contract.suites.store.values import A, metadata
from qlm.broker.sqlite.broker import SqliteQueues
from qlm.broker.sqlite.file import SqliteFile
from qlm.broker.sqlite.journal import SqliteJournal
from qlm.domain.ids import QueueName
from qlm.domain.lease_answer import Granted
from qlm.domain.outcome import Outcome
from qlm.domain.output import LogEntry
from qlm.domain.shell.damage import NO_CONSENT, Consent
from qlm.store.embedded.store import EmbeddedStore
from support.gateway import SystemClock

Q: Final = QueueName("q")
NAME: Final = "qlm.sqlite"


class Opened:
    """Embedded queue and state of a folder."""

    def __init__(self, file: SqliteFile, queues: SqliteQueues, store: EmbeddedStore) -> None:
        self.file = file
        self.queues = queues
        self.store = store

    @classmethod
    async def open(cls, folder: Path, consent: Consent = NO_CONSENT) -> "Opened":
        file = await SqliteFile.open(folder / NAME, consent)
        try:
            queues = await SqliteQueues.open(file)
            store = await EmbeddedStore.open(SystemClock(), SqliteJournal(file), consent=consent)
        except BaseException:
            await file.close()
            raise
        return cls(file, queues, store)

    async def fill(self, first: int, count: int) -> None:
        """Publish messages, end a request, and leave another unfinished."""
        broker = self.queues.broker()
        for n in range(first, first + count):
            await broker.publish(Q, b"%d" % n + b" " * 3000)
        for n, outcome in ((first, Outcome.STOP), (first + 1, None)):
            await self.store.enqueue(metadata(n))
            granted = await self.store.lease(metadata(n), A, None)
            assert isinstance(granted, Granted)
            id, tokens = metadata(n).id, tuple(range(200))
            entry = LogEntry(id=id, epoch=granted.lease.epoch, offset=0, token_ids=tokens, outcome=outcome)
            await self.store.append([entry])

    async def content(self) -> tuple[object, ...]:
        """Read all that must not change unnamed."""
        state = self.store._state
        bodies = await self.queues.broker().peek(Q, bytes, 1000)
        logs = {id: tuple(log.token_ids) for id, log in state.restored.items()}
        ended = [await self.store.read_output(id, 0) for id in sorted(state.requests)]
        return bodies, logs, ended

    async def close(self) -> None:
        await self.store.close()
        await self.queues.close()
        await self.file.close()


def names_of(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}
