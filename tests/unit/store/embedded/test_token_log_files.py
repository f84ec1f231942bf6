"""Files of the token log: after a stop, from other versions, damaged."""

import asyncio
import errno
import os
import re
from pathlib import Path

import pytest

from contract.suites.store.values import (
    A,
    enqueued,
    leased,
    metadata,
    until,
)
from qlm.domain.errors import StoreUnavailableError
from qlm.domain.formats.extensions import LogExtensions
from qlm.domain.outcome import Outcome
from qlm.domain.output import AppendResult, LogEntry, OutputSlice
from qlm.store.core.effects import Logged
from qlm.store.embedded.journal_codec import encode_log, log_key
from qlm.store.embedded.restored_logs import find
from support.dict_journal import DictJournal, ended_request, opened, put_tokens, token_files


async def test_an_orderly_stop_leaves_the_logs_where_earlier_versions_have_them(journal: DictJournal) -> None:
    store = await opened(journal)
    epoch, extensions = await leased(store, 1, A), LogExtensions(preemptions=1)
    await put_tokens(store, 1, epoch, 0, 5)
    await store.append(
        [LogEntry(id=metadata(1).id, epoch=epoch, offset=1, token_ids=(6,), extensions=extensions)]
    )
    await ended_request(store, 2)
    assert sorted(journal.entries) == ["ended/r0002", "incarnation"]
    await store.close()
    assert sorted(journal.entries) == ["ended/r0002", "extensions/r0001", "incarnation", "log/0/r0001"]
    assert token_files(journal) == []
    store = await opened(journal)
    assert sorted(journal.entries) == ["ended/r0002", "incarnation"]
    await enqueued(store, 1)
    output = await store.read_output(metadata(1).id, 0)
    assert output is not None and (output.token_ids, output.extensions) == ((5, 6), extensions)


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_start_of_the_machine_since_the_last_token_is_said(
    journal: DictJournal, caplog: pytest.LogCaptureFixture, restarted: bool
) -> None:
    """A power failure cuts the file anywhere, also between two frames, which is no damage."""
    store = await opened(journal)
    epoch = await leased(store, 1, A)
    await put_tokens(store, 1, epoch, 0, 5)
    (file,) = token_files(journal)
    size = file.stat().st_size
    await put_tokens(store, 1, epoch, 1, 6)
    if restarted:
        os.truncate(file, size)
        os.utime(file, (1, 1))
    store = await opened(journal)
    await enqueued(store, 1)
    output = await store.read_output(metadata(1).id, 0)
    assert output is not None and output.token_ids == ((5,) if restarted else (5, 6))
    assert ("the machine has started since QLM last wrote tokens" in caplog.text) is restarted


async def test_a_version_without_token_log_makes_the_former_one_void(journal: DictJournal) -> None:
    store = await opened(journal)
    await put_tokens(store, 1, await leased(store, 1, A), 0, 5)
    journal.entries["incarnation"] = str(await store.incarnation() + 1).encode()
    part = Logged(metadata(1).id, 0, (8, 9), 7)
    journal.entries[log_key(part)] = encode_log(part)
    store = await opened(journal)
    await enqueued(store, 1)
    output = await store.read_output(metadata(1).id, 0)
    assert output is not None and output.token_ids == (8, 9)
    assert len(token_files(journal)) == 1


async def test_a_store_that_cannot_be_opened_leaves_no_copy_of_the_token_log(journal: DictJournal) -> None:
    store = await opened(journal)
    await put_tokens(store, 1, await leased(store, 1, A), 0, 5)
    before = token_files(journal)
    journal.refused_prefix = ""
    for _ in range(3):
        with pytest.raises(StoreUnavailableError, match="disk full"):
            await opened(journal)
    assert token_files(journal) == before
    journal.refused_prefix = None
    store = await opened(journal)
    await enqueued(store, 1)
    output = await store.read_output(metadata(1).id, 0)
    assert output is not None and output.token_ids == (5,)


@pytest.mark.parametrize(
    ("method", "what"), [("read_bytes", "read"), ("unlink", "deleted"), ("replace", "copied")]
)
async def test_a_token_log_that_cannot_be_used_is_one_clear_error(
    journal: DictJournal, monkeypatch: pytest.MonkeyPatch, method: str, what: str
) -> None:
    store = await opened(journal)
    await put_tokens(store, 1, await leased(store, 1, A), 0, 5)
    (file,) = token_files(journal)
    if what == "copied":
        file.write_bytes(file.read_bytes()[:-1] + b"\xff")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, method, refuse)
    error = f"the token log {file} cannot be {what}: Permission denied"
    with pytest.raises(StoreUnavailableError, match=f"^{re.escape(error)}$"):
        await opened(journal)


async def test_a_token_log_beside_a_new_queue_file_is_put_aside_with_a_warning(journal: DictJournal) -> None:
    store = await opened(journal)
    await put_tokens(store, 1, await leased(store, 1, A), 0, 5)
    (file,) = token_files(journal)
    journal.entries.clear()
    store = await opened(journal)
    (warning,) = await store.warnings()
    assert warning.startswith(f"{file}: the token log is of another queue file")
    assert [each for each in token_files(journal) if each.suffix == ".damaged"] == [Path(f"{file}.damaged")]
    await enqueued(store, 1)
    assert await store.read_output(metadata(1).id, 0) == OutputSlice(id=metadata(1).id, offset=0)
    assert await (await opened(journal)).warnings() == ()


async def test_a_damaged_token_log_is_a_warning(journal: DictJournal) -> None:
    store = await opened(journal)
    await put_tokens(store, 1, await leased(store, 1, A), 0, 5)
    (file,) = token_files(journal)
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    store = await opened(journal)
    (warning,) = await store.warnings()
    assert warning.startswith(f"{file}: the token log is damaged at byte")
    assert await (await opened(journal)).warnings() == ()


@pytest.mark.parametrize("others", [(), (2,)], ids=["alone", "beside another"])
@pytest.mark.parametrize("refused", ["ended/", ""], ids=["the end fails", "all writes fail"])
async def test_tokens_of_a_request_whose_end_was_not_stored_survive_a_stop(
    journal: DictJournal, others: tuple[int, ...], refused: str
) -> None:
    store = await opened(journal)
    epochs = {n: await leased(store, n, A) for n in (1, *others)}
    for n, epoch in epochs.items():
        await put_tokens(store, n, epoch, 0, n, 6)
    journal.refused_prefix = refused
    end = asyncio.create_task(put_tokens(store, 1, epochs[1], 2, 7, end=Outcome.STOP))
    await asyncio.sleep(0)
    await store.close()
    with pytest.raises(StoreUnavailableError, match="disk full"):
        await end
    journal.refused_prefix = None
    store = await opened(journal)
    for n in epochs:
        await enqueued(store, n)
        output = await store.read_output(metadata(n).id, 0)
        assert output == OutputSlice(id=metadata(n).id, offset=0, token_ids=(n, 6))


async def test_a_file_whose_logs_were_moved_goes_once_they_are_on_the_disk(
    journal: DictJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qlm.store.embedded.token_log.SEGMENTS_MAX", 0)
    store = await opened(journal)
    epoch = await leased(store, 1, A)
    (first,) = token_files(journal)
    assert await put_tokens(store, 1, epoch, 0, *range(10)) is AppendResult.TAKEN
    synced = asyncio.Event()
    loop, fsync = asyncio.get_running_loop(), os.fsync

    def note(fd: int) -> None:
        assert first.exists()
        fsync(fd)
        loop.call_soon_threadsafe(synced.set)

    monkeypatch.setattr(os, "fsync", note)
    store._tokens._segment_bytes = 1
    assert await put_tokens(store, 1, epoch, 10, 10) is AppendResult.TAKEN
    assert first.exists()

    async def gone() -> bool:
        return not first.exists()

    await until(gone, "the deletion of the file")
    assert synced.is_set()
    assert find(journal.path, 0).logs[metadata(1).id].token_ids == tuple(range(11))
    await store.close()
