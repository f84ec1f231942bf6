"""Opening the SQLite file: by one process only, and what is told of a file that cannot be opened."""

import asyncio
import errno
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qlm.broker.sqlite.broker import SqliteQueues
from qlm.broker.sqlite.file import SqliteFile
from qlm.broker.sqlite.lock import ProcessLock
from qlm.domain.errors import BrokerUnavailableError, UndecodableDataError
from qlm.domain.ids import QueueName

Q = QueueName("q")

OPENER = """
import asyncio, sys
from pathlib import Path
from qlm.broker.sqlite.file import SqliteFile

asyncio.run(SqliteFile.open(Path(sys.argv[1])))
"""


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[SqliteFile]:
    file = await SqliteFile.open(tmp_path / "queue.db")
    yield file
    await file.close()


async def test_a_second_opener_gets_one_sentence_that_names_the_file(
    tmp_path: Path, file: SqliteFile
) -> None:
    with pytest.raises(BrokerUnavailableError, match=f"queue.db is in use by process {os.getpid()}; only"):
        await SqliteFile.open(tmp_path / "queue.db")
    await file.close()
    await (await SqliteFile.open(tmp_path / "queue.db")).close()


def test_the_error_of_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It said `No space left on device` alone."""

    def full(*_arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(BrokerUnavailableError, match=r"cannot write .*queue.db-lock: No space left"):
            ProcessLock(tmp_path / "queue.db")
    ProcessLock(tmp_path / "queue.db").release()


def test_another_process_cannot_open_the_file_either(tmp_path: Path) -> None:
    async def while_open() -> subprocess.CompletedProcess[str]:
        file = await SqliteFile.open(tmp_path / "queue.db")
        command = [sys.executable, "-c", OPENER, str(tmp_path / "queue.db")]
        second = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=60, check=False
        )
        await file.close()
        return second

    second = asyncio.run(while_open())
    assert second.returncode == 1
    assert f"in use by process {os.getpid()}" in second.stderr


# Exits with 1 if another process has SQLite's lock that says that the index of the log is in use.
LOCKS_INDEX = """
import fcntl, sys
with open(sys.argv[1], "r+b") as index:
    try:
        fcntl.lockf(index, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 128)
    except OSError:
        sys.exit(1)
"""


async def test_another_process_that_looks_into_the_file_leaves_the_index_of_its_log_alone(
    tmp_path: Path, file: SqliteFile
) -> None:
    queues = await SqliteQueues.open(file)
    for body in (b"1", b"2"):  # once the second is written, what follows the first commit is done
        await queues.publish(Q, body)
    command = [sys.executable, "-c", LOCKS_INDEX, str(tmp_path / "queue.db-shm")]
    assert (await asyncio.to_thread(subprocess.run, command, timeout=60, check=False)).returncode == 1


# Looks into a file, as the command `sqlite3` does, and closes it.
LOOKS = """
import contextlib, sqlite3, sys
with contextlib.closing(sqlite3.connect(sys.argv[1])) as connection:
    print(connection.execute("SELECT count(*) FROM message").fetchone()[0])
"""


@pytest.mark.parametrize("new", [True, False])
async def test_what_is_published_after_another_process_has_looked_into_the_file_is_kept(
    tmp_path: Path, new: bool
) -> None:
    path, copy = tmp_path / "queue.db", tmp_path.with_name(f"{tmp_path.name}-copy")
    if not new:
        await (await SqliteFile.open(path)).close()
    file = await SqliteFile.open(path)
    queues = await SqliteQueues.open(file)
    await queues.publish(Q, b"before")
    command = [sys.executable, "-c", LOOKS, str(path)]
    looked = await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=60, check=True)
    assert looked.stdout.strip() == b"1"
    await queues.publish(Q, b"after")
    shutil.copytree(tmp_path, copy)  # what a kill leaves
    await file.close()
    for each in (copy / path.name, path):
        again = await SqliteFile.open(each)
        assert (await SqliteQueues.open(again)).depth(Q) == 2
        await again.close()


async def test_a_missing_folder_is_one_clear_sentence(tmp_path: Path) -> None:
    with pytest.raises(BrokerUnavailableError, match=r"no/queue\.db: No such file"):
        await SqliteFile.open(tmp_path / "no/queue.db")


async def test_a_file_of_another_kind_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(UndecodableDataError, match=r"queue\.db cannot be read"):
        await SqliteFile.open(path)
    assert path.read_bytes() == b"not a database at all" * 100


@pytest.mark.parametrize("statement", ["PRAGMA user_version = 2", "CREATE TABLE theirs (x)"])
async def test_a_database_of_another_schema_is_refused(tmp_path: Path, statement: str) -> None:
    connection = sqlite3.connect(tmp_path / "queue.db")
    connection.execute(statement)
    connection.close()
    for _ in range(2):  # the refusal must let go of the lock
        with pytest.raises(UndecodableDataError, match="expected 1"):
            await SqliteFile.open(tmp_path / "queue.db")
