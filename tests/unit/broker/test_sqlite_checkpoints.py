"""Checkpoints of a queue file: what a power failure leaves, and what an open reader makes them cost."""

import asyncio
import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from qlm.broker.sqlite import checkpoints
from qlm.broker.sqlite.damage import checksums_path
from qlm.broker.sqlite.file import SqliteFile
from qlm.broker.sqlite.journal import SqliteJournal
from qlm.broker.sqlite.write_ahead_log import Index, OpenIndex, log_path, synced_pages

FRAMES_MAX = 20


@pytest.fixture(autouse=True)
def _early_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "FRAMES_MAX", FRAMES_MAX)


class Disk:
    """What a power failure leaves of the log of a file when its checksums were written: what was synced."""

    def __init__(self, path: Path) -> None:
        self.left: list[dict[str, bytes]] = []
        self._path = path
        self._log = b""
        self._sync = os.fdatasync

    def fdatasync(self, fd: int) -> None:
        self._sync(fd)
        synced = Path(f"/proc/self/fd/{fd}").readlink()
        if synced == log_path(self._path):
            self._log = synced.read_bytes()
        if synced == checksums_path(self._path):
            files = {each.name: each.read_bytes() for each in (self._path, synced)}
            self.left.append(files | {log_path(self._path).name: self._log})


async def _fill(journal: SqliteJournal, count: int) -> None:
    for n in range(count):
        await journal.write([(f"key {n % 7}", bytes([n]) * 3000)])  # not synced


async def test_a_power_failure_after_checksums_were_written_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, copy = tmp_path / "queue.sqlite", tmp_path / "copy"
    copy.mkdir()
    await (await SqliteFile.open(path)).close()
    disk = Disk(path)
    file = await SqliteFile.open(path)
    monkeypatch.setattr(os, "fdatasync", disk.fdatasync)
    await _fill(SqliteJournal(file), 40)
    await file.close()
    monkeypatch.undo()
    assert len(disk.left) > 3
    for left in disk.left:
        for name, content in left.items():
            (copy / name).write_bytes(content)
        again = await SqliteFile.open(copy / path.name)
        await again.close()


class Reads:
    """Counts the frames that checkpoints read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.frames: list[int] = []
        monkeypatch.setattr(checkpoints, "synced_pages", self._synced_pages)

    def _synced_pages(self, path: Path, index: Index, skipped: int) -> dict[int, bytes]:
        self.frames.append(index.frames - skipped)
        return synced_pages(path, index, skipped)


@contextlib.contextmanager
def _reader(path: Path) -> Iterator[None]:
    """Keep a read transaction of another program open: pages written since stay in the log."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM message").fetchone()
        yield


async def test_another_program_that_empties_the_log_at_that_moment_holds_up_no_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "queue.sqlite"
    file = await SqliteFile.open(path)

    def emptied(path: Path, index: Index, skipped: int) -> dict[int, bytes]:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        monkeypatch.undo()
        return synced_pages(path, index, skipped)

    with contextlib.closing(sqlite3.connect(path, check_same_thread=False)) as other:
        monkeypatch.setattr(checkpoints, "synced_pages", emptied)
        async with asyncio.timeout(20):
            await _fill(SqliteJournal(file), 60)
    assert [each.getMessage() for each in caplog.records] == [
        f"the write-ahead log of {path} is not moved into it: another program has emptied it"
    ]
    await file.close()


async def test_an_open_reader_does_not_make_each_commit_read_the_log_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, copy = tmp_path / "queue.sqlite", tmp_path.with_name(f"{tmp_path.name}-copy")
    file = await SqliteFile.open(path)
    journal, reads, index = SqliteJournal(file), Reads(monkeypatch), OpenIndex(path)
    with _reader(path):
        await _fill(journal, 60)
        assert index.read().moved < FRAMES_MAX
        assert sum(reads.frames) <= index.read().frames
        assert len(reads.frames) > 2
        assert min(reads.frames) >= FRAMES_MAX
        kept_log = index.read().salts
        shutil.copytree(tmp_path, copy)  # what a kill leaves
    await _fill(journal, 30)
    assert index.read().salts != kept_log, "all pages were moved, and a log begun"
    await file.close()
    index.close()
    await (await SqliteFile.open(path)).close()
    again = await SqliteFile.open(copy / path.name)
    assert dict(SqliteJournal(again).load()) == {f"key {n % 7}": bytes([n]) * 3000 for n in range(60)}
    await again.close()
