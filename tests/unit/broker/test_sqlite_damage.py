"""A queue file whose process was killed, and whose write-ahead log or pages were damaged since."""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qlm.broker.sqlite.broker import SqliteQueues
from qlm.broker.sqlite.file import SqliteFile
from qlm.broker.sqlite.journal import SqliteJournal
from qlm.broker.sqlite.write_ahead_log import read_written
from qlm.domain.errors import DamagedDataError, UndecodableDataError
from qlm.domain.ids import QueueName
from qlm.store.embedded.store import EmbeddedStore
from support.damaged import any_damage, flip
from support.gateway import SystemClock

MESSAGES = 120
Q = QueueName("q")

WRITER = """
import asyncio, sys
from pathlib import Path
from qlm.broker.sqlite.broker import SqliteQueues
from qlm.broker.sqlite.file import SqliteFile

async def main():
    broker = (await SqliteQueues.open(await SqliteFile.open(Path(sys.argv[1])))).broker()
    for n in range(int(sys.argv[2])):
        await broker.publish("q", b"%d" % n + b" " * 500)
    print("accepted", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""

Damage = Callable[[Path], None]


def log_of(path: Path) -> Path:
    return Path(f"{path}-wal")


def index_of(path: Path) -> Path:
    return Path(f"{path}-shm")


def overwrite(path: Path, at: int, length: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        before = file.read(length)
        file.seek(at)
        file.write(bytes(each ^ 0xFF for each in before))


def flip_bytes(path: Path) -> None:
    overwrite(log_of(path), log_of(path).stat().st_size // 2, 3)


def spoil_page(path: Path) -> None:
    overwrite(log_of(path), log_of(path).stat().st_size // 3, 4096)


def spoil_header(path: Path) -> None:
    overwrite(log_of(path), 0, 32)


def cut(path: Path) -> None:
    os.truncate(log_of(path), log_of(path).stat().st_size // 2)


def delete(path: Path) -> None:
    log_of(path).unlink()


async def killed(path: Path) -> None:
    """Let a process accept messages, and kill it."""
    writer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, str(path), str(MESSAGES), stdout=asyncio.subprocess.PIPE
    )
    assert writer.stdout is not None
    assert await writer.stdout.readline() == b"accepted\n"
    writer.send_signal(signal.SIGKILL)
    await writer.wait()


async def opened(path: Path) -> tuple[tuple[str, ...], int]:
    """Open a file; return what it says about damage, and its number of messages."""
    file = await SqliteFile.open(path, any_damage)
    queues = await SqliteQueues.open(file)
    try:
        return file.damage, await queues.broker().depth(Q)
    finally:
        await queues.close()
        await file.close()


async def test_a_killed_process_leaves_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"
    await killed(path)
    assert await opened(path) == ((), MESSAGES)


@pytest.mark.parametrize("damage", [flip_bytes, spoil_page, spoil_header, cut, delete])
async def test_a_damaged_log_is_reported(
    tmp_path: Path, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "queue.sqlite"
    await killed(path)
    damage(path)
    with caplog.at_level(logging.ERROR, logger="qlm.broker"):
        (said,), left = await opened(path)
    assert left < MESSAGES
    assert "write-ahead log is damaged" in said
    assert said in caplog.messages
    assert ("the log is kept as" in said) is (damage is not delete)
    # What was reported is not reported again, also if what lies behind the damage had stayed in the log.
    await killed(path)
    assert await opened(path) == ((), left + MESSAGES)


@pytest.mark.parametrize("indexed", [True, False])
async def test_each_flipped_byte_of_the_header_of_a_log_is_named(tmp_path: Path, indexed: bool) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    source.mkdir()
    await killed(source / "queue.sqlite")
    if not indexed:  # the machine went down
        index_of(source / "queue.sqlite").unlink()
    for at in range(32):
        shutil.copytree(source, copy)
        flip(log_of(copy / "queue.sqlite"), at)
        for _ in range(2):
            with pytest.raises(DamagedDataError, match="0 can be read"):
                await SqliteFile.open(copy / "queue.sqlite")
        shutil.rmtree(copy)


@pytest.mark.parametrize("length", [56, 4096, 5000])
async def test_a_log_without_its_first_bytes_and_index_is_named(tmp_path: Path, length: int) -> None:
    """The machine went down, and with it the index; the block was not readable."""
    path = tmp_path / "queue.sqlite"
    await killed(path)
    index_of(path).unlink()
    with log_of(path).open("r+b") as file:
        file.write(bytes(length))
    with pytest.raises(DamagedDataError, match=r"0 can be read; 12\d or more commits are lost"):
        await SqliteFile.open(path)
    (said,), _ = await opened(path)
    assert "the log is kept as" in said
    assert (await opened(path))[0] == ()


@pytest.mark.parametrize("some", [True, False], ids=["some-bytes", "zeros"])
async def test_a_log_without_any_whole_frame_is_named_for_its_bytes(tmp_path: Path, some: bool) -> None:
    path = tmp_path / "queue.sqlite"
    await killed(path)
    index_of(path).unlink()
    log_of(path).write_bytes(bytes(4152) + some * b"rest of a frame")
    said, _ = await opened(path)
    assert len(said) == some


@pytest.mark.parametrize("indexed", [True, False])
async def test_frames_of_earlier_generations_of_a_log_are_not_counted(tmp_path: Path, indexed: bool) -> None:
    path, copy = tmp_path / "queue.sqlite", tmp_path / "copy"
    await killed(path)
    frames = len(read_written(path).pages)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(RESTART)")
        connection.execute("INSERT INTO queue VALUES ('other')")
        connection.commit()
        shutil.copytree(tmp_path, copy)
    if not indexed:
        index_of(copy / path.name).unlink()
    assert log_of(copy / path.name).stat().st_size > frames * 4096
    assert read_written(copy / path.name).frames == 1


HEADER_BYTES, FRAME_BYTES = 24, 24 + 4096


def parts_of(log: bytes, before: bytes) -> Iterator[tuple[bytes, bool]]:
    """Yield what kills leave of a log while SQLite writes it, and whether its last commit is whole.

    SQLite writes the header of each frame, then its page.
    """
    changed = [at for at in range(32, len(log), FRAME_BYTES) if log[at : at + 24] != before[at : at + 24]]
    for at in changed:
        for end in (at, at + HEADER_BYTES, at + HEADER_BYTES + 2048, at + FRAME_BYTES):
            yield log[:end] + before[end:], end == changed[-1] + FRAME_BYTES


@pytest.mark.parametrize("indexed", [True, False])
async def test_a_kill_at_each_write_of_a_commit_to_a_used_log_is_no_damage(
    tmp_path: Path, indexed: bool
) -> None:
    path, before, copy = tmp_path / "queue.sqlite", tmp_path / "before", tmp_path / "copy"
    await killed(path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_checkpoint(RESTART)")
        connection.execute("INSERT INTO queue VALUES ('stored')")
        before.mkdir()
        for each in (path, log_of(path), index_of(path)):
            shutil.copy(each, before)
        connection.execute("INSERT INTO message (queue, body) VALUES ('q', zeroblob(20000))")
        log = log_of(path).read_bytes()
    kills = list(parts_of(log, log_of(before / path.name).read_bytes()))
    assert len(kills) > 4 * 5
    for left, whole in kills:
        shutil.copytree(before, copy)
        log_of(copy / path.name).write_bytes(left)
        if not indexed:
            index_of(copy / path.name).unlink()
        assert await opened(copy / path.name) == ((), MESSAGES + whole)
        shutil.rmtree(copy)


async def test_damage_of_the_last_commit_that_the_index_counts_is_named(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"
    await killed(path)
    flip(log_of(path), log_of(path).stat().st_size - 10)
    (said,), left = await opened(path)
    assert "write-ahead log is damaged" in said
    assert left == MESSAGES - 1


async def test_an_index_of_an_earlier_log_is_no_damage(tmp_path: Path) -> None:
    """A power failure may leave one on the disk: the index is not synced."""
    path = tmp_path / "queue.sqlite"
    await killed(path)
    earlier = index_of(path).read_bytes()
    assert await opened(path) == ((), MESSAGES)
    await killed(path)
    index_of(path).write_bytes(earlier)
    assert await opened(path) == ((), 2 * MESSAGES)


@pytest.mark.parametrize("left", [b"", bytes(32)], ids=["empty", "no-header-yet"])
async def test_an_earlier_index_beside_a_log_without_frames_is_no_damage(tmp_path: Path, left: bytes) -> None:
    """A power failure may leave that: the log was emptied after all of its pages were moved."""
    path = tmp_path / "queue.sqlite"
    await killed(path)
    earlier = index_of(path).read_bytes()
    assert await opened(path) == ((), MESSAGES)
    log_of(path).write_bytes(left)
    index_of(path).write_bytes(earlier)
    assert await opened(path) == ((), MESSAGES)


async def test_the_lost_commits_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"
    await killed(path)
    flip_bytes(path)
    (said,), left = await opened(path)
    assert f" {MESSAGES - left} or more commits are lost" in said


async def test_the_store_warns_of_a_damaged_log(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"
    await killed(path)
    cut(path)
    file = await SqliteFile.open(path, any_damage)
    store = await EmbeddedStore.open(SystemClock(), SqliteJournal(file))
    assert file.damage
    assert await store.warnings() == file.damage
    await store.close()
    await file.close()


async def test_a_damaged_page_after_an_unclean_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"
    await killed(path)
    # A checkpoint brings the log into the file, as when the log grows.
    file = await SqliteFile.open(path)
    await SqliteQueues.open(file)
    await file.close()
    pages = path.stat().st_size // 4096
    for page in range(pages // 2, pages):
        overwrite(path, page * 4096, 16)
    with pytest.raises(UndecodableDataError, match="is damaged"):
        await SqliteFile.open(path, any_damage)
