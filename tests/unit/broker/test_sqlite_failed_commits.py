"""Commits that fail: after SQLite wrote them to the log, or after their caller was cancelled."""

import asyncio
import os
import shutil
import sqlite3
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import pytest

from qlm.broker.sqlite import checkpoints
from qlm.broker.sqlite.broker import SqliteBroker, SqliteQueues
from qlm.broker.sqlite.file import SqliteFile
from qlm.broker.sqlite.write_ahead_log import OpenIndex, log_path
from qlm.domain.errors import BrokerUnavailableError
from qlm.domain.ids import QueueName

Q = QueueName("q")
FRAMES = 8
LOG_HEADER_BYTES, FRAME_HEADER_BYTES, PAGE_BYTES = 32, 24, 4096
FRAME_BYTES = FRAME_HEADER_BYTES + PAGE_BYTES


class Opened:
    """A queue file in a folder of its own."""

    def __init__(self, path: Path, file: SqliteFile, queues: SqliteQueues) -> None:
        self.path = path
        self.file = file
        self.queues = queues
        self.index = OpenIndex(path)

    @classmethod
    async def open(cls, path: Path) -> "Opened":
        file = await SqliteFile.open(path)
        return cls(path, file, await SqliteQueues.open(file))

    @property
    def broker(self) -> SqliteBroker:
        return self.queues.broker()

    async def close(self) -> None:
        await self.queues.close()
        await self.file.close()
        self.index.close()

    def unsynced(self, connection: sqlite3.Connection, operations: Sequence[None]) -> None:
        """Leave a whole commit in the log, as SQLite does when the sync after it fails, and fail."""
        log, index = log_path(self.path), self.index.read()
        data = log.read_bytes()
        end = LOG_HEADER_BYTES + index.frames * FRAME_BYTES
        checksum = data[24:32] if index.frames == 0 else data[end - PAGE_BYTES - 8 : end - PAGE_BYTES]
        with log.open("r+b") as file:
            for page in range(2, 2 + FRAMES):
                numbers = struct.pack(">2I", page, 40 if page == 1 + FRAMES else 0)
                content = os.urandom(PAGE_BYTES)
                checksum = checksum_of(numbers + content, data[3] & 1, checksum)
                os.pwrite(file.fileno(), numbers + index.salts + checksum + content, end)
                end += FRAME_BYTES
        raise sqlite3.OperationalError("disk I/O error")


def checksum_of(data: bytes, big: int, before: bytes) -> bytes:
    """Return SQLite's checksum of a frame."""
    first, second = struct.unpack(">2I", before)
    words = struct.unpack(f"{'>' if big else '<'}{len(data) // 4}I", data)
    for one, other in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return struct.pack(">2I", first, second)


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Opened]:
    (tmp_path / "live").mkdir()
    opened = await Opened.open(tmp_path / "live" / "queue.sqlite")
    yield opened
    await opened.close()


async def bodies_after_a_kill(path: Path, copy: Path) -> Sequence[bytes]:
    """Open what a kill leaves of a file now; return the messages, of which none may be lost."""
    killed = await Opened.open(Path(shutil.copytree(path.parent, copy)) / path.name)
    bodies = await killed.broker.peek(Q, bytes, 100)
    await killed.close()
    return bodies


async def fail(opened: Opened) -> None:
    with pytest.raises(BrokerUnavailableError, match="disk I/O error"):
        await opened.file.write(opened.unsynced, None, durable=True)


async def test_what_a_failed_commit_left_in_the_log_is_no_damage_after_a_kill(
    opened: Opened, tmp_path: Path
) -> None:
    await opened.broker.publish(Q, b"before")
    await fail(opened)
    await fail(opened)
    await opened.broker.publish(Q, b"after")
    assert await bodies_after_a_kill(opened.path, tmp_path / "killed") == [b"before", b"after"]
    await opened.broker.publish(Q, b"later" * 10_000)
    assert await bodies_after_a_kill(opened.path, tmp_path / "again") == [
        b"before",
        b"after",
        b"later" * 10_000,
    ]


async def test_a_failed_commit_to_a_log_that_was_begun_again_is_no_damage(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "FRAMES_MAX", 40)
    salts = opened.index.read().salts
    await opened.broker.publish(Q, bytes(200_000))
    await opened.broker.publish(Q, b"new")
    assert opened.index.read().salts != salts
    await fail(opened)
    await opened.broker.publish(Q, b"newest")
    found = await bodies_after_a_kill(opened.path, tmp_path / "killed")
    assert len(found) == 3
    assert found[-2:] == [b"new", b"newest"]


async def test_what_another_program_commits_meanwhile_stays(opened: Opened, tmp_path: Path) -> None:
    await opened.broker.publish(Q, b"before")
    opened.file._writing.execute("PRAGMA busy_timeout = 0")
    with closing(sqlite3.connect(opened.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("INSERT INTO message (id, queue, body) VALUES (1000, 'q', zeroblob(9000))")
        with pytest.raises(BrokerUnavailableError, match="locked"):
            await opened.broker.publish(Q, b"refused")
        other.execute("COMMIT")
        await opened.broker.publish(Q, b"after")
    assert await bodies_after_a_kill(opened.path, tmp_path / "killed") == [b"before", b"after", bytes(9000)]


async def test_a_log_that_cannot_be_cut_fails_the_commit_and_keeps_lazy_writes(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = opened.broker
    await broker.publish(Q, b"before")
    (delivery,) = await broker.get(Q)
    await fail(opened)
    with monkeypatch.context() as broken:
        broken.setattr(os, "ftruncate", _refuse)
        await broker.ack(delivery)
        with pytest.raises(BrokerUnavailableError, match="its write-ahead log cannot be cut: no"):
            await broker.publish(Q, b"refused")
    await broker.publish(Q, b"after")
    assert await bodies_after_a_kill(opened.path, tmp_path / "killed") == [b"after"]


async def test_a_cancelled_publish_that_fails_does_not_keep_its_queue(opened: Opened) -> None:
    broker = opened.broker
    await broker.publish(Q, b"first")
    (delivery,) = await broker.get(Q)
    await broker.ack(delivery)
    await opened.file.write(_limit_pages, 20)
    publish = asyncio.create_task(broker.publish(Q, bytes(200_000)))
    deletion = asyncio.create_task(broker.delete_unused([Q]))  # begins after it, before it can have failed
    assert await deletion == [], "a publish is under way"
    publish.cancel()
    with pytest.raises(asyncio.CancelledError):
        await publish
    with suppress(BrokerUnavailableError):  # it may share the transaction that fails
        await broker.probe()
    await opened.file.write(_limit_pages, 1_000_000)
    assert await broker.depth(Q) == 0
    assert await broker.delete_unused([Q]) == [Q]


async def test_a_publish_to_a_closed_file_counts_for_nothing(tmp_path: Path) -> None:
    opened = await Opened.open(tmp_path / "queue.sqlite")
    await opened.close()
    with pytest.raises(BrokerUnavailableError, match="closed"):
        await opened.queues.publish(Q, b"late")
    assert not opened.queues._publishing


def _limit_pages(connection: sqlite3.Connection, limits: Sequence[int]) -> None:
    connection.execute(f"PRAGMA max_page_count = {limits[0]}")


def _refuse(fd: int, length: int) -> None:
    raise PermissionError(1, "no")
