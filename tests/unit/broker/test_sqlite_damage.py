"""A queue file whose process was killed, and whose write-ahead log or pages were damaged since."""

import asyncio
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from qlm.broker.sqlite.broker import SqliteQueues
from qlm.broker.sqlite.file import SqliteFile
from qlm.broker.sqlite.journal import SqliteJournal
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
