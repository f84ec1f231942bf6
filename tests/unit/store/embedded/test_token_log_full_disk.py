"""The token log on a full disk: files of ended requests make room for others, and a kill is no damage."""

import errno
import os
from pathlib import Path

import pytest

from contract.suites.store.values import A, enqueued, leased, metadata
from qlm.domain.errors import StoreUnavailableError
from qlm.domain.ids import RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.output import AppendResult
from qlm.store.core.effects import Logged
from qlm.store.embedded.restored_logs import find
from qlm.store.embedded.token_log import TokenLog
from support.dict_journal import DictJournal, opened, put_tokens, token_files

INCARNATION = 5
LONG, NEXT = RequestId("long"), RequestId("next")
SEGMENT_BYTES = 1_000


class SmallDisk:
    """Disk with only the files of one folder, and so much space for them."""

    def __init__(self, folder: Path, space_bytes: int) -> None:
        self.space_bytes = space_bytes
        self._folder = folder

    @property
    def used_bytes(self) -> int:
        """Bytes that are in use."""
        return sum(file.stat().st_size for file in self._folder.glob("*-tokens.*"))

    def write(self, fd: int, data: bytes) -> int:
        """Write what fits."""
        room_bytes = self.space_bytes - self.used_bytes
        if room_bytes <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(fd, data[:room_bytes])


def _part(id: RequestId, offset: int, count: int) -> Logged:
    return Logged(id, offset, tuple(range(offset, offset + count)), 1_000)


@pytest.mark.parametrize("parts", [4, 5, 6, 7], ids=lambda n: f"{n} parts")
@pytest.mark.parametrize("room_bytes", [0, 5, 20, 100])
def test_files_of_ended_requests_make_room(tmp_path: Path, parts: int, room_bytes: int) -> None:
    """The newest file is full or not, and a new one, a frame or nothing of it fits."""
    path = tmp_path / "q"
    disk = SmallDisk(tmp_path, 10**6)
    log = TokenLog(path, INCARNATION, lambda _: None, write=disk.write, segment_bytes=SEGMENT_BYTES)
    for n in range(parts):
        log.write([_part(LONG, 100 * n, 100)], ())
    disk.space_bytes = disk.used_bytes + room_bytes
    log.ended([LONG])
    with pytest.raises(StoreUnavailableError, match="No space left"):
        log.write([_part(NEXT, 0, 100)], ())
    log.write([_part(NEXT, 0, 100)], ())
    found = find(path, INCARNATION)
    assert found.damage == ()
    assert {id: each.token_ids for id, each in found.logs.items()} == {NEXT: tuple(range(100))}


async def test_a_kill_on_a_full_disk_is_no_damage(journal: DictJournal) -> None:
    store = await opened(journal)
    tokens = store._tokens
    epochs = {n: await leased(store, n, A) for n in (1, 2)}
    tokens._segment_bytes = 1
    for n in range(2):
        await put_tokens(store, 1, epochs[1], n, n)
    await put_tokens(store, 2, epochs[2], 0, 7)
    tokens._segment_bytes = SEGMENT_BYTES
    await put_tokens(store, 1, epochs[1], 2, 2)
    before = token_files(journal)
    tokens._write = SmallDisk(journal.path.parent, 0).write
    assert await put_tokens(store, 1, epochs[1], 3, 3, end=Outcome.STOP) is AppendResult.TAKEN
    assert token_files(journal) == before
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match="No space left"):
            await put_tokens(store, 2, epochs[2], 1, 8)
    assert token_files(journal) == before[-1:]
    again = await opened(journal)
    assert await again.warnings() == ()
    await enqueued(again, 2)
    outputs = [await again.read_output(metadata(n).id, 0) for n in (1, 2)]
    assert [each and each.token_ids for each in outputs] == [(0, 1, 2, 3), (7,)]
    await again.close()
