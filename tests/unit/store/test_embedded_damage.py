"""A flipped byte in each file of the embedded queue and state is named at the start, and needs a consent."""

import asyncio
import contextlib
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from qlm.broker.sqlite.checkpoints import FRAMES_MAX
from qlm.broker.sqlite.file import SqliteFile
from qlm.broker.sqlite.journal import SqliteJournal
from qlm.domain.errors import DamagedDataError, StoreUnavailableError, UndecodableDataError
from qlm.domain.shell.damage import NO_CONSENT, code_of, consent_to
from qlm.store.embedded.restored_logs import Found as FoundLogs
from support.damaged import any_damage, flip
from support.embedded import NAME, Opened, Q, names_of
from support.ports import free_port

PAGE_BYTES: Final = 4096
PLACES: Final = 8
NOTHING_TO_LOSE: Final = {f"{NAME}-lock", f"{NAME}-shm"}
"""Files that are written anew at each start: the lock, and the index of the write-ahead log."""


def places(file: Path) -> Iterator[int]:
    """Choose some places of a file, its first and its last byte among them."""
    size = file.stat().st_size
    yield from sorted({round(n * (size - 1) / (PLACES - 1)) for n in range(PLACES)})


class Copies:
    """Copies of a folder, one byte of each flipped."""

    def __init__(self, folder: Path, copy: Path, expected: tuple[object, ...]) -> None:
        self._folder = folder
        self._copy = copy
        self._expected = expected

    @classmethod
    async def of(cls, folder: Path, copy: Path) -> "Copies":
        sound = await Opened.open(Path(shutil.copytree(folder, copy)))
        expected = await sound.content()
        await sound.close()
        return cls(folder, copy, expected)

    async def flipped(self, name: str, at: int) -> str:
        """Return what an attempt to open one says; empty if it opens and has all that it should."""
        shutil.rmtree(self._copy)
        shutil.copytree(self._folder, self._copy)
        flip(self._copy / name, at)
        try:
            opened = await Opened.open(self._copy)
        except DamagedDataError as error:
            return str(error)
        assert await opened.content() == self._expected
        await opened.close()
        return ""


async def test_each_flipped_byte_of_closed_files_is_named(closed: Path, tmp_path: Path) -> None:
    names = names_of(closed)
    assert names == {NAME, f"{NAME}-checksums", f"{NAME}-lock"}
    copies = await Copies.of(closed, tmp_path / "copy")
    for name in names - NOTHING_TO_LOSE:
        for at in places(closed / name):
            said = await copies.flipped(name, at)
            assert said.startswith(f"{tmp_path / 'copy' / name}: "), (name, at)
            assert "damaged" in said


async def test_each_flipped_byte_after_a_kill_is_named_or_costs_nothing(killed: Path, tmp_path: Path) -> None:
    names = names_of(killed)
    tokens = {name for name in names if name.startswith(f"{NAME}-tokens.")}
    assert names == {NAME, *(f"{NAME}-{what}" for what in ("checksums", "lock", "wal", "shm")), *tokens}
    assert tokens
    copies, named = await Copies.of(killed, tmp_path / "copy"), set()
    for name in names:
        for at in places(killed / name):
            if await copies.flipped(name, at):
                named.add(name)
            else:
                # The log has a newer page, with a checksum of its own.
                assert name in {NAME, f"{NAME}-checksums", *NOTHING_TO_LOSE}, (name, at)
    assert named == {NAME, f"{NAME}-checksums", f"{NAME}-wal", *tokens}


async def test_damage_is_named_again_until_there_is_a_consent_to_it(killed: Path) -> None:
    (tokens,) = (each for each in names_of(killed) if "-tokens." in each)
    flip(killed / f"{NAME}-wal", 10_000)
    flip(killed / tokens, 20)
    codes: list[str] = []
    for n in (0, 1):
        said = set()
        for consent in (consent_to(codes), consent_to([*codes, "00000000"])):
            with pytest.raises(DamagedDataError) as refused:
                await Opened.open(killed, consent)
            said.add(str(refused.value))
        (error,) = said
        assert ("write-ahead log" in error, "token log" in error) == (n == 0, n == 1)
        codes += re.findall("--accept-damage ([0-9a-f]{8})$", error)
    opened = await Opened.open(killed, consent_to(codes))
    damage = await opened.store.warnings()
    assert code_of(damage) == codes[1], "the log was put in order by the consent before"
    await opened.close()
    assert {f"{NAME}-wal.damaged", f"{tokens}.damaged"} <= names_of(killed)
    await (await Opened.open(killed)).close()


@pytest.mark.parametrize("stored", [True, False], ids=["after-it-was-stored", "before"])
async def test_a_start_that_is_killed_while_it_puts_damage_away_keeps_it(
    killed: Path, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    """The new incarnation, once stored, makes the damaged file of the token log void."""
    (tokens,) = (each for each in names_of(killed) if "-tokens." in each)
    flip(killed / tokens, 20)
    damaged = (killed / tokens).read_bytes()
    with monkeypatch.context() as kill:
        owner, method = (FoundLogs, "put_away") if stored else (SqliteJournal, "write")
        kill.setattr(owner, method, _killed)
        with pytest.raises(StoreUnavailableError, match="killed"):
            await Opened.open(killed, any_damage)
    opened = await Opened.open(killed, NO_CONSENT if stored else any_damage)
    assert bool(await opened.store.warnings()) is not stored
    await opened.close()
    assert {each for each in names_of(killed) if "-tokens." in each} == {f"{tokens}.damaged"}
    assert (killed / f"{tokens}.damaged").read_bytes() == damaged


def _killed(*args: object, **options: object) -> None:
    raise StoreUnavailableError("killed")


async def test_what_is_kept_of_a_damage_stays_after_the_next_one(closed: Path) -> None:
    contents = []
    for number in (1, 2, 3):
        flip(closed / NAME, 20_000 + number)
        contents.append((closed / NAME).read_bytes())
        with pytest.raises(DamagedDataError) as refused:
            await Opened.open(closed)
        kept = f"{NAME}.damaged" + (f".{number}" if number > 1 else "")
        assert f"it is kept as {closed / kept}; these files were not changed" in str(refused.value)
        # A start with the consent was killed once it had kept the file.
        (closed / kept).write_bytes(contents[-1])
        opened = await Opened.open(closed, consent_to([str(refused.value).split()[-1]]))
        await opened.close()
    kept_files = [f"{NAME}.damaged", f"{NAME}.damaged.2", f"{NAME}.damaged.3"]
    assert [(closed / each).read_bytes() for each in kept_files] == contents
    assert {each for each in names_of(closed) if ".damaged" in each} == set(kept_files)


async def test_a_deleted_log_is_named_again(killed: Path) -> None:
    (killed / f"{NAME}-wal").unlink()
    for _ in range(2):
        with pytest.raises(DamagedDataError, match="the log is gone"):
            await Opened.open(killed)


async def test_another_copy_of_the_file_is_no_damage(closed: Path) -> None:
    """An operator puts back a copy that was made while nothing ran, and leaves the checksums of the newer."""
    backup = (closed / NAME).read_bytes()
    opened = await Opened.open(closed)
    await opened.fill(20, 20)
    await opened.close()
    (closed / NAME).write_bytes(backup)
    opened = await Opened.open(closed)
    assert len(await opened.queues.broker().peek(Q, bytes, 100)) == 20
    await opened.close()
    flip(closed / NAME, 20_000)
    with pytest.raises(DamagedDataError, match="1 of"):
        await Opened.open(closed)


async def test_a_copy_from_before_a_session_without_requests_is_no_damage(closed: Path) -> None:
    """It differs in the page with the mark only."""
    backup = (closed / NAME).read_bytes()
    await (await SqliteFile.open(closed / NAME)).close()
    (closed / NAME).write_bytes(backup)
    await (await Opened.open(closed)).close()


async def test_a_backup_of_the_same_session_is_no_damage(closed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "backup.sqlite"
    opened = await Opened.open(closed)
    with (
        contextlib.closing(sqlite3.connect(closed / NAME)) as source,
        contextlib.closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)
    await opened.fill(20, 20)
    await opened.close()
    (closed / NAME).write_bytes(copy.read_bytes())
    for at in (24, 92):  # of one value of the change counter
        flip(closed / NAME, at)
        with pytest.raises(DamagedDataError, match="pages do not fit"):
            await Opened.open(closed)
        flip(closed / NAME, at)
    opened = await Opened.open(closed)
    assert len(await opened.queues.broker().peek(Q, bytes, 100)) == 20
    await opened.close()


async def test_a_file_that_sqlite_vacuumed_is_no_damage(closed: Path) -> None:
    with contextlib.closing(sqlite3.connect(closed / NAME)) as connection:
        connection.execute("VACUUM")
    await (await Opened.open(closed)).close()


@pytest.mark.parametrize("pages", [(0,), (0, 4), (4, 5)])
async def test_damage_of_pages_without_another_change_counter_is_named(
    closed: Path, pages: tuple[int, ...]
) -> None:
    for page in pages:
        flip(closed / NAME, page * PAGE_BYTES + (70 if page == 0 else PAGE_BYTES - 100))
    with pytest.raises(DamagedDataError, match=f"{len(pages)} of"):
        await Opened.open(closed)


def zero(path: Path, at: int, length: int) -> None:
    """Overwrite bytes of a file with zeros."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes(length))


@pytest.mark.parametrize("length", [200, 512, PAGE_BYTES])
async def test_damage_that_takes_the_mark_of_the_file_is_named(closed: Path, length: int) -> None:
    """The page of facts has the mark that shows whether the checksums are of this file."""
    path = closed / NAME
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (facts,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'fact'").fetchone()
    for page in (facts, path.stat().st_size // PAGE_BYTES - 1):
        zero(path, page * PAGE_BYTES - length, length)
    for _ in range(2):
        with pytest.raises(DamagedDataError, match=r"2 of \d+ pages do not fit"):
            await Opened.open(closed)


async def test_damage_that_makes_the_journal_unreadable_is_an_error_with_the_path(closed: Path) -> None:
    with contextlib.closing(sqlite3.connect(closed / NAME)) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'journal'").fetchone()
    zero(closed / NAME, (root - 1) * PAGE_BYTES, PAGE_BYTES)
    file = await SqliteFile.open(closed / NAME, any_damage)
    with pytest.raises(UndecodableDataError, match=f"{NAME} cannot be read"):
        SqliteJournal(file).load()
    await file.close()


@pytest.mark.parametrize("row", ["queue VALUES (?)", "journal (key, value) VALUES (?, x'31')"])
async def test_damage_of_text_makes_the_file_unreadable_not_unavailable(closed: Path, row: str) -> None:
    path = closed / NAME
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"INSERT INTO {row}", ("spoiled-text",))
    flip(path, path.read_bytes().index(b"spoiled-text"), 0xFF)
    with pytest.raises(UndecodableDataError, match=f"{NAME} cannot be read as a queue file"):
        await Opened.open(closed, any_damage)


async def test_damage_of_a_name_that_is_then_no_text_is_named(closed: Path) -> None:
    """SQLite quotes the name in its message, which Python cannot decode."""
    path = closed / NAME
    flip(path, path.read_bytes().index(b"journal"), 0xFF)
    with pytest.raises(DamagedDataError, match="is damaged"):
        await Opened.open(closed)
    with pytest.raises(UndecodableDataError, match=f"{NAME} cannot be read as a queue file"):
        await Opened.open(closed, any_damage)


@pytest.mark.parametrize(
    "leave",
    [
        "DELETE FROM fact WHERE name = 'checksums'; DROP TRIGGER void_checksums",
        "INSERT OR REPLACE INTO fact VALUES ('clean', 1)",
    ],
    ids=["the-only-one", "the-last-one"],
)
async def test_a_file_of_a_version_without_checksums_is_no_damage(closed: Path, leave: str) -> None:
    with contextlib.closing(sqlite3.connect(closed / NAME)) as connection:
        connection.executescript(f"{leave}; DELETE FROM message WHERE id % 2")
    opened = await Opened.open(closed)
    assert len(await opened.queues.broker().peek(Q, bytes, 100)) == 10
    await opened.close()


async def test_checksums_are_written_before_the_pages(tmp_path: Path) -> None:
    """A kill after checkpoints: what is in the file fits."""
    opened = await Opened.open(tmp_path)
    broker = opened.queues.broker()
    size = (tmp_path / NAME).stat().st_size
    for n in range(FRAMES_MAX // 10):
        await broker.publish(Q, b"%d" % n + b" " * 40_000)
    copy = tmp_path / "copy"
    copy.mkdir()
    for each in names_of(tmp_path) - {"copy"}:
        shutil.copy(tmp_path / each, copy / each)
    assert (copy / NAME).stat().st_size > size, "there was a checkpoint"
    again = await Opened.open(copy)
    assert len(await again.queues.broker().peek(Q, bytes, 1000)) == FRAMES_MAX // 10
    await again.close()
    await opened.close()
    (copy / NAME).write_bytes((copy / NAME).read_bytes()[:-8192])
    with pytest.raises(DamagedDataError, match="damaged"):
        await Opened.open(copy)


async def test_the_command_takes_the_consent_and_names_other_damage(closed: Path) -> None:
    (closed / f"{NAME}-tokens.{2**63}.1").write_bytes(b"no token log")
    flip(closed / f"{NAME}-checksums", 0)
    with pytest.raises(DamagedDataError, match="the checksums of") as refused:
        await Opened.open(closed)
    command = [sys.executable, "-m", "qlm.cli.main", "serve", "--no-agents", "--data-dir", str(closed)]
    command += ["--port", str(free_port()), "--grpc-port", "0", "--admin-port", "0"]
    command += str(refused.value).split()[-2:]
    ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    assert ended.returncode == 1
    assert re.search("the token log is damaged.* --accept-damage [0-9a-f]{8}$", ended.stderr.splitlines()[-1])
