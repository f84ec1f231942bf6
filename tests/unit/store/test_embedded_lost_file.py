"""A queue file that is gone while files beside it are there, and what a killed start leaves of a new one."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from contract.suites.store.values import metadata
from qlm.broker.sqlite.file import SqliteFile
from qlm.domain.errors import DamagedDataError
from qlm.domain.shell.damage import NO_CONSENT, consent_to
from support.embedded import NAME, Opened, Q, names_of

TraceFunction = Callable[[FrameType, str, Any], Any]


@pytest.mark.parametrize("emptied", [True, False], ids=["emptied", "deleted"])
@pytest.mark.parametrize("left", [("checksums",), ("wal", "shm"), ("wal",), ("checksums", "wal", "shm")])
async def test_a_lost_file_is_named_and_what_is_left_is_kept(
    killed: Path, left: tuple[str, ...], emptied: bool
) -> None:
    if emptied:
        os.truncate(killed / NAME, 0)
    else:
        (killed / NAME).unlink()
    for name in names_of(killed) - {NAME, *(f"{NAME}-{what}" for what in left)}:
        (killed / name).unlink()
    kept = {each: (killed / f"{NAME}-{each}").read_bytes() for each in left if each != "shm"}
    for _ in range(2):
        with pytest.raises(DamagedDataError, match="all of its accepted requests") as refused:
            await Opened.open(killed)
    opened = await Opened.open(killed, consent_to([str(refused.value).split()[-1]]))
    assert opened.file.damage
    assert {each: (killed / f"{NAME}-{each}.damaged").read_bytes() for each in kept} == kept
    await opened.fill(0, 3)
    await opened.close()
    again = await Opened.open(killed)
    assert len(await again.queues.broker().peek(Q, bytes, 100)) == 3
    await again.close()


async def test_a_later_refusal_does_not_say_that_nothing_was_changed(killed: Path) -> None:
    """The loss of the queue file had a consent, so a new one was begun before damaged media were found."""
    opened = await Opened.open(killed)
    await opened.store.put_media(metadata(1).id, b"media")
    await opened.close()
    for each in (killed / f"{NAME}.media").iterdir():
        each.write_bytes(b"other")
    (killed / NAME).unlink()
    with pytest.raises(DamagedDataError, match="all of its accepted requests") as lost:
        await Opened.open(killed)
    with pytest.raises(DamagedDataError, match="media") as refused:
        await Opened.open(killed, consent_to([str(lost.value).split()[-1]]))
    assert "nothing was changed" not in str(refused.value)
    assert "these files were not changed" in str(refused.value)


class Snapshots:
    """Contents of a folder at each line of the modules of the queue file that one thread runs."""

    def __init__(self, folder: Path) -> None:
        self.seen: dict[tuple[tuple[str, bytes], ...], None] = {}
        self._folder = folder

    def _trace(self, frame: FrameType, event: str, argument: object) -> TraceFunction | None:
        if "/broker/sqlite/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            files = sorted(self._folder.iterdir())
            self.seen.setdefault(tuple((each.name, each.read_bytes()) for each in files))
        return self._trace

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(before)


@pytest.mark.parametrize("first", [True, False], ids=["first-start", "later-start"])
async def test_what_a_kill_at_any_line_of_a_start_leaves_is_no_damage(
    closed: Path, tmp_path: Path, first: bool
) -> None:
    folder = tmp_path / "new" if first else closed
    folder.mkdir(exist_ok=True)
    snapshots = Snapshots(folder)
    with snapshots.taken():
        file = SqliteFile(folder / NAME, asyncio.get_running_loop(), NO_CONSENT)
    await file.close()
    assert len(snapshots.seen) > 4
    for number, files in enumerate(snapshots.seen):
        copy = tmp_path / str(number)
        copy.mkdir()
        for name, content in files:
            (copy / name).write_bytes(content)
        opened = await Opened.open(copy)
        assert opened.file.damage == ()
        assert len(await opened.queues.broker().peek(Q, bytes, 100)) == (0 if first else 20)
        await opened.close()
