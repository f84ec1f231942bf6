"""Checkpoints of a queue file: what a power failure leaves of one."""

import os
from pathlib import Path

import pytest

from qlm.broker.sqlite import checkpoints
from qlm.broker.sqlite.damage import checksums_path
from qlm.broker.sqlite.file import SqliteFile
from qlm.broker.sqlite.journal import SqliteJournal
from qlm.broker.sqlite.write_ahead_log import log_path

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
