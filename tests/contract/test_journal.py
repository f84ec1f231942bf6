"""Contract of the journal, on its implementation in the broker's SQLite file."""

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qlm.broker.sqlite.broker import SqliteQueues
from qlm.broker.sqlite.file import SqliteFile
from qlm.broker.sqlite.journal import SqliteJournal
from qlm.domain.errors import StoreUnavailableError
from qlm.domain.ids import QueueName

# Writes pairs of entries that must agree, prints each number once written, until it is killed.
WRITER = """
import asyncio, sys
from pathlib import Path
from qlm.broker.sqlite.file import SqliteFile
from qlm.broker.sqlite.journal import SqliteJournal

async def main():
    journal = SqliteJournal(await SqliteFile.open(Path(sys.argv[1])))
    for n in range(1_000_000):
        value = b"%d" % n
        await journal.write([("left", value), ("right", value), (f"n{n}", b"")], [f"n{n - 1}"])
        print(n, flush=True)

asyncio.run(main())
"""


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[SqliteFile]:
    file = await SqliteFile.open(tmp_path / "queue.db")
    yield file
    await file.close()


async def test_a_new_journal_is_empty(file: SqliteFile) -> None:
    assert list(SqliteJournal(file).load()) == []


async def test_entries_load_in_the_order_of_their_first_write(file: SqliteFile) -> None:
    journal = SqliteJournal(file)
    await journal.write([("z", b"1"), ("a", b"2"), ("m", b"")])
    await journal.write([("a", b"3"), ("b", b"\x00\xff")], ["m"])
    assert list(journal.load()) == [("z", b"1"), ("a", b"3"), ("b", b"\x00\xff")]


async def test_a_key_deleted_and_put_again_takes_a_new_place(file: SqliteFile) -> None:
    journal = SqliteJournal(file)
    await journal.write([("a", b"1"), ("b", b"2")])
    await asyncio.gather(journal.write([], ["a"]), journal.write([("a", b"3")]))
    assert list(journal.load()) == [("b", b"2"), ("a", b"3")]


writes = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from("abcde"), st.binary(max_size=3)), max_size=4),
        st.lists(st.sampled_from("abcde"), max_size=2),
        st.booleans(),
    ),
    max_size=8,
)


@settings(max_examples=50, deadline=None)
@given(writes=writes)
def test_writes_at_once_add_up_as_if_one_by_one(
    writes: list[tuple[list[tuple[str, bytes]], list[str], bool]],
) -> None:
    expected: dict[str, bytes] = {}
    for puts, deletes, _ in writes:
        expected.update(puts)
        for key in deletes:
            expected.pop(key, None)

    async def load_after_all(path: Path) -> Sequence[tuple[str, bytes]]:
        file = await SqliteFile.open(path)
        journal = SqliteJournal(file)
        await asyncio.gather(*(journal.write(puts, deletes, durable=d) for puts, deletes, d in writes))
        entries = journal.load()
        await file.close()
        return entries

    with tempfile.TemporaryDirectory() as folder:
        assert list(asyncio.run(load_after_all(Path(folder) / "q.db"))) == list(expected.items())


async def test_entries_survive_a_crash_and_a_reopen(tmp_path: Path, file: SqliteFile) -> None:
    await SqliteJournal(file).write([("a", b"1")])
    for suffix in ("", "-wal"):  # what the file system holds is what a kill -9 leaves
        shutil.copy(f"{file.path}{suffix}", tmp_path / f"copy.db{suffix}")
    for path in (tmp_path / "copy.db", file.path):
        await file.close()
        again = await SqliteFile.open(path)
        assert list(SqliteJournal(again).load()) == [("a", b"1")]
        await again.close()


def test_a_kill_keeps_every_write_that_returned_whole(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    child = subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(300)]
        os.kill(child.pid, signal.SIGKILL)
        lines += [line for line in child.stdout if line.endswith("\n")]

    async def load() -> dict[str, bytes]:
        file = await SqliteFile.open(path)
        entries = dict(SqliteJournal(file).load())
        await file.close()
        return entries

    entries = asyncio.run(load())
    last = int(entries["left"])
    assert entries == {"left": b"%d" % last, "right": b"%d" % last, f"n{last}": b""}
    assert last >= int(lines[-1])


async def test_an_acknowledgement_never_outlives_the_result_written_before_it(file: SqliteFile) -> None:
    """Read after each commit: no state lacks both the message and its result."""
    journal, broker = SqliteJournal(file), (await SqliteQueues.open(file)).broker()
    queue = QueueName("q")
    for n in range(100):
        await broker.publish(queue, b"%d" % n)
    for delivery in await broker.get(queue, 100):
        storing = asyncio.ensure_future(journal.write([(delivery.body.decode(), b"result")]))
        await asyncio.sleep(0)
        await broker.ack(delivery)
        results, messages = await file.read(_count)
        assert results + messages >= 100
        await storing
    await journal.write([], ["no such key"])  # a later write: all acknowledgements are written before it
    assert await file.read(_count) == (100, 0)


def _count(connection: sqlite3.Connection) -> tuple[int, int]:
    counts = "SELECT (SELECT count(*) FROM journal), (SELECT count(*) FROM message)"
    results, messages = connection.execute(counts).fetchone()
    return results, messages


async def test_a_closed_file_is_a_store_error(file: SqliteFile) -> None:
    journal = SqliteJournal(file)
    await file.close()
    with pytest.raises(StoreUnavailableError, match="closed"):
        await journal.write([("a", b"1")])
