"""The embedded store on its real SQLite file, in a process that is killed without warning."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Final

from contract.suites.store.values import metadata
from qlm.broker.sqlite.file import SqliteFile
from qlm.broker.sqlite.journal import SqliteJournal
from qlm.domain.outcome import Outcome
from qlm.domain.output import OutputSlice
from qlm.store.embedded.store import EmbeddedStore

_VICTIM = """
    import asyncio, sys, time
    from pathlib import Path
    from qlm.broker.sqlite.file import SqliteFile
    from qlm.broker.sqlite.journal import SqliteJournal
    from qlm.domain.outcome import Outcome
    from qlm.domain.output import LogEntry
    from contract.suites.store.values import A, metadata, leased
    from qlm.store.embedded.store import EmbeddedStore

    class SystemClock:
        def now_ns(self): return time.time_ns()

    async def main():
        file = await SqliteFile.open(Path(sys.argv[1]))
        store = await EmbeddedStore.open(SystemClock(), SqliteJournal(file))
        epoch = await leased(store, 1, A)
        end = LogEntry(id=metadata(1).id, epoch=epoch, offset=0, token_ids=(7, 8), outcome=Outcome.STOP)
        await store.append([end])
        epochs = [(metadata(n).id, await leased(store, n, A)) for n in range(2, 10)]
        offset = 0
        while True:
            entries = [
                LogEntry(id=id, epoch=epoch, offset=offset, token_ids=(offset,)) for id, epoch in epochs
            ]
            await store.append(entries)
            offset += 1
            print(offset, flush=True)

    asyncio.run(main())
"""


TESTS: Final = Path(__file__).parents[1]


class SystemClock:
    def now_ns(self) -> int:
        return time.time_ns()


def _killed_after(path: Path, appends: int) -> int:
    """Let a process append tokens to eight logs; return the number confirmed for each when it was killed."""
    victim = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_VICTIM), str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    with victim:
        assert victim.stdout is not None
        confirmed = 0
        for line in victim.stdout:
            confirmed = int(line)
            if confirmed == appends:
                victim.send_signal(signal.SIGKILL)
    assert victim.returncode == -signal.SIGKILL
    return confirmed


async def test_confirmed_output_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "qlm.sqlite"
    confirmed = _killed_after(path, 100)
    file = await SqliteFile.open(path)
    store = await EmbeddedStore.open(SystemClock(), SqliteJournal(file))
    ended = OutputSlice(id=metadata(1).id, offset=0, token_ids=(7, 8), outcome=Outcome.STOP)
    assert await store.read_output(metadata(1).id, 0) == ended
    assert not (await store.enqueue(metadata(1))).created
    assert await store.warnings() == ()
    for n in range(2, 10):
        assert (await store.enqueue(metadata(n))).created
        log = await store.read_output(metadata(n).id, 0)
        assert log is not None
        assert log.token_ids == tuple(range(len(log.token_ids)))
        assert len(log.token_ids) >= confirmed >= 100
    await store.close()
    await file.close()
