"""Media in files beside the journal of the embedded store."""

import asyncio
import hashlib
import os
import threading
import time
from pathlib import Path

import pytest

from qlm.broker.sqlite.file import SqliteFile
from qlm.broker.sqlite.journal import SqliteJournal
from qlm.domain.errors import DamagedDataError, StoreDataError, StoreUnavailableError
from qlm.domain.ids import RequestId
from qlm.domain.ports.media import MEDIA_KEPT_S
from qlm.domain.shell.damage import consent_to
from qlm.store.embedded.media import MediaFiles
from qlm.store.embedded.store import EmbeddedStore
from support.damaged import flip
from support.full_disk import full_disk
from support.gateway import SystemClock

ONE, TWO = RequestId("one"), RequestId("../two")
NOW_S = 2e9


def folder(path: Path) -> Path:
    return path / "queue.sqlite.media"


def files(path: Path) -> MediaFiles:
    return MediaFiles(path / "queue.sqlite")


async def test_media_outlive_the_process(tmp_path: Path) -> None:
    for data in (b"a", b"b"):
        file = await SqliteFile.open(tmp_path / "queue.sqlite")
        store = await EmbeddedStore.open(SystemClock(), SqliteJournal(file))
        assert await store.put_media(ONE, b"a") and await store.put_media(ONE, data) is (data == b"a")
        await store.close()
        await file.close()
    assert await files(tmp_path).get(ONE) == b"a"
    assert (folder(tmp_path).stat().st_mode & 0o777) == 0o700


async def test_media_of_ended_requests_and_old_ones_go_at_the_start(tmp_path: Path) -> None:
    made = files(tmp_path)
    for id in (ONE, TWO, RequestId("three")):
        assert await made.put(id, b"x")
    (folder(tmp_path) / "cut.new").write_bytes(b"half")
    again = files(tmp_path)
    for path in folder(tmp_path).iterdir():
        os.utime(path, (NOW_S, NOW_S))
    again.forget([ONE], NOW_S + MEDIA_KEPT_S - 1)
    assert [await again.get(id) for id in (ONE, TWO)] == [None, b"x"]
    assert len(list(folder(tmp_path).iterdir())) == 2
    again.forget([], NOW_S + MEDIA_KEPT_S + 1)
    assert await again.get(TWO) is None
    assert list(folder(tmp_path).iterdir()) == []


async def opened(path: Path, *codes: str) -> tuple[EmbeddedStore, SqliteFile]:
    file = await SqliteFile.open(path / "queue.sqlite")
    try:
        journal = SqliteJournal(file)
        return await EmbeddedStore.open(SystemClock(), journal, consent=consent_to(codes)), file
    except BaseException:
        await file.close()
        raise


async def test_damaged_media_are_named_at_the_start_and_kept_aside(tmp_path: Path) -> None:
    store, file = await opened(tmp_path)
    assert await store.put_media(ONE, b"image") and await store.put_media(TWO, b"sound")
    await store.close()
    await file.close()
    (damaged,) = (path for path in folder(tmp_path).iterdir() if path.read_bytes() == b"image")
    flip(damaged, 2)
    for _ in range(2):
        with pytest.raises(DamagedDataError, match="ends with output_lost") as refused:
            await opened(tmp_path)
    store, file = await opened(tmp_path, str(refused.value).split()[-1])
    (said,) = await store.warnings()
    assert said.startswith(f"{damaged}: ")
    assert f"{damaged.name}.damaged" in {path.name for path in folder(tmp_path).iterdir()}
    assert (await store.media(ONE), await store.media(TWO)) == (None, b"sound")
    await store.close()
    await file.close()
    store, file = await opened(tmp_path)
    assert await store.warnings() == ()
    await store.close()
    await file.close()


async def test_each_damaged_file_is_kept_as_long_as_media_from_its_consent_on(tmp_path: Path) -> None:
    for number in range(3):
        assert await files(tmp_path).put(ONE, b"image")
        (path,) = (each for each in folder(tmp_path).iterdir() if "damaged" not in each.name)
        path.write_bytes(b"damage %d" % number)
        os.utime(path, (NOW_S, NOW_S))
        again = files(tmp_path)
        (said,) = again.inspect([], NOW_S)
        again.put_away()
        (kept,) = (each for each in folder(tmp_path).iterdir() if each.read_bytes() == b"damage %d" % number)
        assert said.endswith(f" {kept}")
        assert abs(time.time() - kept.stat().st_mtime) < 60
    names = {each.name.removeprefix(path.name) for each in folder(tmp_path).iterdir()}
    assert names == {".damaged", ".damaged.2", ".damaged.3"}
    files(tmp_path).forget([], time.time() + MEDIA_KEPT_S - 60)
    assert len(list(folder(tmp_path).iterdir())) == 3
    files(tmp_path).forget([], time.time() + MEDIA_KEPT_S + 60)
    assert list(folder(tmp_path).iterdir()) == []


async def test_damage_of_media_while_they_wait_is_an_error_of_this_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = files(tmp_path)
    assert await made.put(ONE, b"image")
    (path,) = folder(tmp_path).iterdir()
    flip(path, 0)
    for _ in range(2):
        with pytest.raises(StoreDataError):
            await made.get(ONE)
    (said,) = made.warnings()
    assert str(path) in said and caplog.messages == [said]
    assert not await made.put(ONE, b"others")
    assert await made.put(ONE, b"image"), "the same media take their place"
    assert await made.get(ONE) == b"image"
    assert made.warnings() == ()
    assert len(list(folder(tmp_path).iterdir())) == 1


async def test_media_of_the_version_without_digests_are_read(tmp_path: Path) -> None:
    folder(tmp_path).mkdir()
    former = folder(tmp_path) / hashlib.sha256(ONE.encode()).hexdigest()
    former.write_bytes(b"image")
    made = files(tmp_path)
    assert made.inspect([], NOW_S) == ()
    assert await made.get(ONE) == b"image"
    assert await made.put(ONE, b"image") and not await made.put(ONE, b"others")
    os.utime(former, (1.0, 1.0))
    made.drop([ONE])
    assert await made.put(ONE, b"others")
    former.write_bytes(b"image")
    os.utime(former, (1.0, 1.0))
    again = files(tmp_path)
    again.forget([], 100.0)
    assert await again.get(ONE) == b"others"
    assert not former.exists()


@pytest.mark.parametrize("name", [".DS_Store", ".nfs000012", "{}~", "{}.bak", "{}.damaged.bak", "notes"])
async def test_files_of_others_are_no_media_and_stay(tmp_path: Path, name: str) -> None:
    assert await files(tmp_path).put(ONE, b"image")
    (path,) = folder(tmp_path).iterdir()
    foreign = folder(tmp_path) / name.format(path.name)
    foreign.write_bytes(b"others")
    (folder(tmp_path) / ".snapshot").mkdir()
    os.utime(path, (1.0, 1.0))
    again = files(tmp_path)
    assert again.inspect([], 2.0) == ()
    again.forget([ONE], 2.0 + 2 * MEDIA_KEPT_S)
    again.drop([ONE])
    assert {each.name for each in folder(tmp_path).iterdir()} == {foreign.name, ".snapshot"}


async def test_a_sound_file_counts_before_a_later_damaged_one_of_its_request(tmp_path: Path) -> None:
    assert await files(tmp_path).put(ONE, b"image")
    (path,) = folder(tmp_path).iterdir()
    os.utime(path, (1.0, 1.0))
    (folder(tmp_path) / f"{path.name.partition('.')[0]}.{'0' * 32}").write_bytes(b"damaged")
    again = files(tmp_path)
    assert again.inspect([], 2.0) == ()
    again.forget([], 2.0)
    assert list(folder(tmp_path).iterdir()) == [path]
    assert await again.get(ONE) == b"image"


async def test_puts_of_one_id_at_once_agree(tmp_path: Path) -> None:
    made = files(tmp_path)
    assert await asyncio.gather(*(made.put(ONE, b"x") for _ in range(8))) == [True] * 8
    puts = await asyncio.gather(made.put(TWO, b"a"), made.put(TWO, b"b"))
    assert sorted(puts) == [False, True]
    assert await made.get(TWO) == (b"a" if puts[0] else b"b")
    assert len(list(folder(tmp_path).iterdir())) == 2


class SlowFiles(MediaFiles):
    """Media whose writes begin when they are let go."""

    def __init__(self, journal: Path) -> None:
        super().__init__(journal)
        self.begun = asyncio.Event()
        self.go = threading.Event()
        self._loop = asyncio.get_running_loop()

    def _write(self, name: str, number: int, data: bytes) -> None:
        self._loop.call_soon_threadsafe(self.begun.set)
        assert self.go.wait(30)
        super()._write(name, number, data)


async def test_a_put_that_is_cancelled_ends_before_the_next_one_begins(tmp_path: Path) -> None:
    made = SlowFiles(tmp_path / "queue.sqlite")
    first = asyncio.create_task(made.put(ONE, b"first"))
    await made.begun.wait()
    second = asyncio.create_task(made.put(ONE, b"second"))
    first.cancel()
    await asyncio.wait([first], timeout=0)
    first.cancel()  # as often as its caller likes
    made.go.set()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert not await second
    assert (await made.get(ONE), await files(tmp_path).get(ONE)) == (b"first", b"first")
    assert len(list(folder(tmp_path).iterdir())) == 1
    made.drop([ONE])
    assert list(folder(tmp_path).iterdir()) == []


async def test_media_dropped_while_they_are_written_are_gone_after_it(tmp_path: Path) -> None:
    made = SlowFiles(tmp_path / "queue.sqlite")
    put = asyncio.create_task(made.put(ONE, b"image"))
    await made.begun.wait()
    put.cancel()
    made.drop([ONE])
    made.go.set()
    with pytest.raises(asyncio.CancelledError):
        await put
    assert list(folder(tmp_path).iterdir()) == []


async def test_a_file_that_has_gone_is_no_media(tmp_path: Path) -> None:
    made = files(tmp_path)
    assert await made.put(ONE, b"x")
    for path in folder(tmp_path).iterdir():
        path.unlink()
    assert await made.get(ONE) is None
    made.drop([ONE])


async def test_a_disk_that_refuses_is_a_store_that_is_away(tmp_path: Path) -> None:
    folder(tmp_path).write_text("a file in place of the folder")
    with pytest.raises(StoreUnavailableError, match="media in"):
        await files(tmp_path).put(ONE, b"x")


async def test_media_that_do_not_fit_on_the_disk_leave_nothing_there(tmp_path: Path) -> None:
    made = files(tmp_path)
    assert await made.put(ONE, b"first")
    with full_disk(1_000), pytest.raises(StoreUnavailableError, match="File too large"):
        await made.put(TWO, bytes(10_000))
    assert len(list(folder(tmp_path).iterdir())) == 1
    assert await made.put(TWO, bytes(10_000))
    assert await made.get(TWO) == bytes(10_000)
