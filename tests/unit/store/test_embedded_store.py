"""Embedded store: state that survives a crash, and behaviour with a slow or broken journal."""

import asyncio
import errno
import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from contract.suites.store.values import (
    GATEWAY,
    WAIT_MAX_S,
    A,
    alive,
    each_slice,
    enqueued,
    leased,
    listening,
    metadata,
    until,
)
from qlm.domain.errors import StoreUnavailableError, UndecodableDataError
from qlm.domain.formats.extensions import LogExtensions
from qlm.domain.lease import Epoch
from qlm.domain.lease_answer import Granted, Over
from qlm.domain.length_histogram import length_bin
from qlm.domain.outcome import Outcome
from qlm.domain.output import AppendResult, LogEntry, OutputSlice
from qlm.domain.ports.published import PublishedKind
from qlm.domain.request import RequestRecord, RequestState
from qlm.domain.view import RequestFilter
from qlm.store.core.effects import Logged
from qlm.store.core.limits import StoreLimits
from qlm.store.embedded.journal_codec import encode_log, log_key
from qlm.store.embedded.restored_logs import find
from qlm.store.embedded.store import EmbeddedStore
from qlm.store.embedded.token_log import TokenLog
from support.damaged import any_damage


class SystemClock:
    def now_ns(self) -> int:
        return time.time_ns()


class DictJournal:
    """Journal in memory that survives the store, as a file does; its writes can be blocked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[str, bytes] = {}
        self.durable_writes = 0
        self.writes = 0
        self.open = asyncio.Event()
        self.open.set()
        self.error: Exception | None = None
        self.refused_prefix: str | None = None

    def load(self) -> Sequence[tuple[str, bytes]]:
        return list(self.entries.items())

    def warnings(self) -> Sequence[str]:
        return ()

    async def write(
        self, puts: Sequence[tuple[str, bytes]], deletes: Sequence[str] = (), *, durable: bool = False
    ) -> None:
        self.writes += 1
        await self.open.wait()
        if self.error is not None:
            raise self.error
        if self.refused_prefix is not None and any(key.startswith(self.refused_prefix) for key, _ in puts):
            raise StoreUnavailableError("disk full")
        self.entries.update(puts)
        for key in deletes:
            self.entries.pop(key, None)
        self.durable_writes += durable


@pytest.fixture
def journal(tmp_path: Path) -> DictJournal:
    """A journal whose token log is in a folder of its own."""
    return DictJournal(tmp_path / "queue")


async def _opened(journal: DictJournal, limits: StoreLimits | None = None) -> EmbeddedStore:
    """Open a store, damaged or not; the one before is simply dropped, as by a kill -9."""
    return await EmbeddedStore.open(SystemClock(), journal, limits, consent=any_damage, retry_s=0.005)


async def _append(
    store: EmbeddedStore, n: int, epoch: Epoch, offset: int, *token_ids: int, end: Outcome | None = None
) -> AppendResult:
    entry = LogEntry(
        id=metadata(n).id,
        epoch=epoch,
        offset=offset,
        token_ids=token_ids,
        outcome=end,
        detail="why" if end else "",
    )
    return (await store.append([entry]))[0]


async def _ended(store: EmbeddedStore, n: int) -> RequestRecord:
    epoch = await leased(store, n, A)
    await _append(store, n, epoch, 0, 5, 6)
    await _append(store, n, epoch, 2, 7, end=Outcome.STOP)
    record = await store.record(metadata(n).id)
    assert record is not None
    return record


async def test_an_ended_request_comes_back_whole(journal: DictJournal) -> None:
    store = await _opened(journal)
    record = await _ended(store, 1)
    means = (await store.view()).classes
    store = await _opened(journal)
    assert await store.record(metadata(1).id) == record
    whole = OutputSlice(id=metadata(1).id, offset=0, token_ids=(5, 6, 7), outcome=Outcome.STOP, detail="why")
    assert await store.read_output(metadata(1).id, 0) == whole
    again = await store.enqueue(metadata(1))
    assert (again.created, again.record) == (False, record)
    assert await store.lease(metadata(1), A, None) == Over(outcome=Outcome.STOP)
    await enqueued(store, 2)
    (view,) = (await store.view()).classes
    assert (view.mean_output_tokens, view.finished) == (3.0, 1)
    assert view.lengths.ended[length_bin(3)] == 1
    assert (view.mean_prompt_tokens, view.mean_max_tokens) == (11.5, 100.0)
    assert means == ()


async def test_extensions_written_before_the_first_token_come_back_with_the_log(
    journal: DictJournal,
) -> None:
    extensions = LogExtensions(render_state="x", render_state_tokens=0)
    store = await _opened(journal)
    await alive(store, A)
    epoch = await leased(store, 1, A)
    await store.append([LogEntry(id=metadata(1).id, epoch=epoch, offset=0, extensions=extensions)])
    await _append(store, 1, epoch, 0, 5)
    store = await _opened(journal)
    await enqueued(store, 1)
    whole = OutputSlice(id=metadata(1).id, offset=0, token_ids=(5,), extensions=extensions)
    assert await store.read_output(metadata(1).id, 0) == whole


async def test_the_log_of_an_unfinished_request_waits_for_its_message(journal: DictJournal) -> None:
    store = await _opened(journal)
    await alive(store, A)
    former = await leased(store, 1, A)
    for offset in range(3):
        assert await _append(store, 1, former, offset, offset) is AppendResult.TAKEN
    before = await store.record(metadata(1).id)
    store = await _opened(journal)
    await alive(store, A)
    assert await store.record(metadata(1).id) is None
    assert await _append(store, 1, former, 3, 9) is AppendResult.UNKNOWN
    found = await store.enqueue(metadata(1))
    assert found.created
    assert (found.record.state, found.record.output_tokens) == (RequestState.QUEUED, 3)
    assert before is not None and found.record.first_token_ns == before.first_token_ns
    answer = await store.lease(metadata(1), A, None)
    assert isinstance(answer, Granted) and answer.output == (0, 1, 2)
    assert answer.lease.epoch > former
    assert await _append(store, 1, former, 3, 9) is AppendResult.UNKNOWN
    assert await _append(store, 1, answer.lease.epoch, 3, 3) is AppendResult.TAKEN
    store = await _opened(journal)
    answer = await store.lease(metadata(1), A, None)
    assert isinstance(answer, Granted) and answer.output == (0, 1, 2, 3)


async def test_an_ended_request_leaves_one_entry_in_the_journal(journal: DictJournal) -> None:
    store = await _opened(journal)
    await _ended(store, 1)
    store = await _opened(journal)
    epoch = await leased(store, 2, A)
    await _append(store, 2, epoch, 0, 5)
    store = await _opened(journal)
    await enqueued(store, 2)
    await store.cancel(metadata(2).id)
    assert sorted(journal.entries) == ["ended/r0001", "ended/r0002", "incarnation"]


async def test_ends_are_durable_and_appends_need_not_be(journal: DictJournal) -> None:
    store = await _opened(journal)
    epoch = await leased(store, 1, A)
    at_start = journal.durable_writes
    await _append(store, 1, epoch, 0, 5)
    assert journal.durable_writes == at_start
    await _append(store, 1, epoch, 1, end=Outcome.STOP)
    assert journal.durable_writes == at_start + 1


async def test_each_opening_is_a_larger_incarnation_even_if_the_clock_went_back(journal: DictJournal) -> None:
    class Stopped:
        def now_ns(self) -> int:
            return 7

    seen = [await (await EmbeddedStore.open(Stopped(), journal)).incarnation() for _ in range(3)]
    assert seen == [7, 8, 9]


async def test_results_beyond_the_limits_leave_the_journal_too(journal: DictJournal) -> None:
    limits = StoreLimits(results_max=2)
    store = await _opened(journal, limits)
    for n in (3, 1, 2):
        await _ended(store, n)
    store = await _opened(journal, limits)
    await _ended(store, 4)
    await enqueued(store, 5)
    ids = [record.metadata.id for record in await store.records(RequestFilter())]
    assert ids == [metadata(n).id for n in (5, 4, 2)]
    assert sorted(journal.entries) == ["ended/r0002", "ended/r0004", "incarnation"]


async def test_nothing_is_shown_before_it_is_written(journal: DictJournal) -> None:
    store = await _opened(journal)
    for n in range(3):
        await enqueued(store, n, watcher=GATEWAY)
    epochs = [await leased(store, n, A) for n in range(3)]
    async with listening(each_slice(store.outputs(GATEWAY))) as received:
        writes = journal.writes
        journal.open.clear()
        ends = [asyncio.create_task(_append(store, n, epochs[n], 0, n, end=Outcome.STOP)) for n in range(3)]
        read = asyncio.create_task(store.read_output(metadata(1).id, 0))

        async def writing() -> bool:
            return journal.writes > writes

        await until(writing, "the write")
        for _ in range(20):
            await asyncio.sleep(0)
        assert not any(task.done() for task in (*ends, read))
        assert received == []
        await enqueued(store, 4)
        journal.open.set()
        assert await asyncio.gather(*ends) == [AppendResult.TAKEN] * 3
        seen = await read
        assert seen is not None and seen.token_ids == (1,)

        async def all_heard() -> bool:
            return len(received) == 3

        await until(all_heard, "three slices")
        assert [part.token_ids for part in received if part] == [(0,), (1,), (2,)]


async def test_ends_that_meet_share_a_write(journal: DictJournal) -> None:
    store = await _opened(journal)
    epochs = [await leased(store, n, A) for n in range(50)]
    before = journal.writes
    await asyncio.gather(*(_append(store, n, epochs[n], 0, 5, end=Outcome.STOP) for n in range(50)))
    assert journal.writes - before <= 2


async def test_a_caller_that_gives_up_stops_no_write(journal: DictJournal) -> None:
    store = await _opened(journal)
    for n in (1, 2):
        await enqueued(store, n, watcher=GATEWAY)
    epoch, other = await leased(store, 1, A), await leased(store, 2, A)
    async with listening(each_slice(store.outputs(GATEWAY))) as received:
        journal.open.clear()
        append = asyncio.create_task(_append(store, 1, epoch, 0, 5, end=Outcome.STOP))
        for _ in range(5):
            await asyncio.sleep(0)
        append.cancel()
        with suppress(asyncio.CancelledError):
            await append
        journal.open.set()
        assert await _append(store, 2, other, 0, 6, end=Outcome.STOP) is AppendResult.TAKEN

        async def all_heard() -> bool:
            return len(received) == 2

        await until(all_heard, "both slices")


async def test_a_journal_that_fails_is_tried_again_and_changes_are_refused_meanwhile(
    journal: DictJournal,
) -> None:
    store = await _opened(journal)
    epoch, other = await leased(store, 1, A), await leased(store, 2, A)
    journal.error = OSError("disk full")
    append = asyncio.create_task(_append(store, 1, epoch, 0, 5, end=Outcome.STOP))

    async def refused() -> bool:
        try:
            await _append(store, 2, other, 9, 5)
        except StoreUnavailableError as error:
            assert str(error) == "the journal cannot be written: disk full"
            return True
        return False

    await until(refused, "the failure")
    assert (await store.read_output(metadata(2).id, 0)) == OutputSlice(id=metadata(2).id, offset=0)
    with pytest.raises(StoreUnavailableError):
        await store.read_output(metadata(1).id, 0)
    assert not append.done()
    journal.error = None
    assert await append is AppendResult.TAKEN
    assert await _append(store, 2, other, 0, 5) is AppendResult.TAKEN


async def test_closing_finishes_pending_writes(journal: DictJournal) -> None:
    store = await _opened(journal)
    epoch = await leased(store, 1, A)
    journal.open.clear()
    append = asyncio.create_task(_append(store, 1, epoch, 0, 5, end=Outcome.STOP))
    await asyncio.sleep(0)
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    journal.open.set()
    await closing
    assert await append is AppendResult.TAKEN
    with pytest.raises(StoreUnavailableError, match="closed"):
        await _append(store, 1, epoch, 1, 6)


async def test_the_history_comes_back_and_waits_for_no_disk(journal: DictJournal) -> None:
    store = await _opened(journal)
    journal.open.clear()
    await store.publish(PublishedKind.HISTORY, b"first")
    await store.publish(PublishedKind.HISTORY, b"second")
    assert await store.published(PublishedKind.HISTORY) == b"second"
    journal.open.set()
    await store.close()
    assert await (await _opened(journal)).published(PublishedKind.HISTORY) == b"second"


async def test_closing_gives_up_on_a_broken_journal(journal: DictJournal) -> None:
    store = await _opened(journal)
    epoch = await leased(store, 1, A)
    journal.error = OSError("disk gone")
    append = asyncio.create_task(_append(store, 1, epoch, 0, 5, end=Outcome.STOP))
    await asyncio.sleep(0)
    await store.close()
    with pytest.raises(StoreUnavailableError, match="disk gone"):
        await append


@pytest.mark.parametrize("key", ["log/0/r1", "ended/r1", "extensions/r1"])
async def test_a_journal_of_another_kind_is_refused(journal: DictJournal, key: str) -> None:
    journal.entries[key] = b"abc"
    with pytest.raises(UndecodableDataError, match=key):
        await _opened(journal)


async def test_a_journal_with_a_hole_is_refused(journal: DictJournal) -> None:
    part = Logged(metadata(1).id, 1, (6,), 7)
    journal.entries[log_key(part)] = encode_log(part)
    with pytest.raises(UndecodableDataError, match="lacks tokens 0 to 1"):
        await _opened(journal)


async def test_an_answer_of_which_tokens_are_missing_in_the_journal_is_lost(journal: DictJournal) -> None:
    store = await EmbeddedStore.open(SystemClock(), journal)
    await alive(store, A)
    epoch = await leased(store, 1, A)
    end = LogEntry(id=metadata(1).id, epoch=epoch, offset=0, token_ids=(1, 2, 3), outcome=Outcome.STOP)
    await store.append([end])
    await store.close()
    key = f"ended/{metadata(1).id}"
    journal.entries[key] = journal.entries[key][:-4]
    again = await EmbeddedStore.open(SystemClock(), journal)
    read, record = await again.read_output(metadata(1).id, 0), await again.record(metadata(1).id)
    assert read is not None and record is not None
    assert (read.token_ids, read.outcome) == ((), Outcome.OUTPUT_LOST)
    assert read.detail == "its output log has 2 tokens, 3 were recorded"
    assert (record.outcome, record.output_tokens) == (Outcome.OUTPUT_LOST, 0)
    await again.close()


async def test_clusters_survive_a_kill_and_are_written_when_they_change(journal: DictJournal) -> None:
    store = await _opened(journal)
    assert await store.published(PublishedKind.CLUSTERS) is None
    await store.publish(PublishedKind.CLUSTERS, b"first")
    await store.publish(PublishedKind.CLUSTERS, b"second")
    writes = journal.writes
    await store.publish(PublishedKind.CLUSTERS, b"second")
    assert journal.writes == writes
    assert await (await _opened(journal)).published(PublishedKind.CLUSTERS) == b"second"


async def test_clusters_that_cannot_be_written_are_an_error_and_not_published(journal: DictJournal) -> None:
    store = await _opened(journal)
    journal.error = StoreUnavailableError("the disk is full")
    with pytest.raises(StoreUnavailableError, match="full"):
        await store.publish(PublishedKind.CLUSTERS, b"first")
    assert await store.published(PublishedKind.CLUSTERS) is None


async def test_tokens_are_in_the_log_and_announced_before_the_call_returns(journal: DictJournal) -> None:
    store = await _opened(journal)
    await enqueued(store, 1, watcher=GATEWAY)
    epoch = await leased(store, 1, A)
    async with listening(each_slice(store.outputs(GATEWAY))) as received:
        journal.open.clear()
        entry = LogEntry(id=metadata(1).id, epoch=epoch, offset=0, token_ids=(5, 6))
        assert store.append_now([entry]) == [AppendResult.TAKEN]
        assert find(journal.path, 0).logs[metadata(1).id].token_ids == (5, 6)

        async def heard() -> bool:
            return len(received) == 1

        await until(heard, "the slice")
        journal.open.set()


async def test_ends_and_what_is_under_way_are_not_written_at_once(journal: DictJournal) -> None:
    store = await _opened(journal)
    one, two = await leased(store, 1, A), await leased(store, 2, A)
    entry = LogEntry(id=metadata(1).id, epoch=one, offset=0, token_ids=(5,), outcome=Outcome.STOP)
    assert store.append_now([entry]) is None
    journal.open.clear()
    end = asyncio.create_task(store.append([entry]))
    await asyncio.sleep(0)
    late = LogEntry(id=metadata(1).id, epoch=one, offset=1, token_ids=(6,))
    other = LogEntry(id=metadata(2).id, epoch=two, offset=0, token_ids=(7,))
    assert store.append_now([late, other]) is None
    assert store.append_now([other]) == [AppendResult.TAKEN]
    journal.open.set()
    assert await end == [AppendResult.TAKEN]
    assert store.append_now([late]) == [AppendResult.ENDED]


async def test_nothing_is_announced_or_left_after_a_write_that_failed(journal: DictJournal) -> None:
    journal.path = journal.path.parent / "folder" / "queue"
    journal.path.parent.mkdir()
    store = await _opened(journal)
    await enqueued(store, 1, watcher=GATEWAY)
    epoch = await leased(store, 1, A)
    async with listening(each_slice(store.outputs(GATEWAY))) as received:
        for file in _token_files(journal):
            file.unlink()
        journal.path.parent.rmdir()
        with pytest.raises(StoreUnavailableError, match="cannot be written: No such file"):
            await _append(store, 1, epoch, 0, 5)
        with pytest.raises(StoreUnavailableError, match="cannot be written: No such file"):
            await store.probe()
        assert await store.read_output(metadata(1).id, 0) == OutputSlice(id=metadata(1).id, offset=0)
        assert await _append(store, 1, epoch, 0, 6, end=Outcome.STOP) is AppendResult.TAKEN

        async def heard() -> bool:
            return len(received) == 1

        await until(heard, "the end")
        assert [part.token_ids for part in received if part] == [(6,)]


async def test_an_orderly_stop_leaves_the_logs_where_earlier_versions_have_them(journal: DictJournal) -> None:
    store = await _opened(journal)
    epoch, extensions = await leased(store, 1, A), LogExtensions(preemptions=1)
    await _append(store, 1, epoch, 0, 5)
    await store.append(
        [LogEntry(id=metadata(1).id, epoch=epoch, offset=1, token_ids=(6,), extensions=extensions)]
    )
    await _ended(store, 2)
    assert sorted(journal.entries) == ["ended/r0002", "incarnation"]
    await store.close()
    assert sorted(journal.entries) == ["ended/r0002", "extensions/r0001", "incarnation", "log/0/r0001"]
    assert _token_files(journal) == []
    store = await _opened(journal)
    assert sorted(journal.entries) == ["ended/r0002", "incarnation"]
    await enqueued(store, 1)
    output = await store.read_output(metadata(1).id, 0)
    assert output is not None and (output.token_ids, output.extensions) == ((5, 6), extensions)


async def test_a_version_without_token_log_makes_the_former_one_void(journal: DictJournal) -> None:
    store = await _opened(journal)
    await _append(store, 1, await leased(store, 1, A), 0, 5)
    journal.entries["incarnation"] = str(await store.incarnation() + 1).encode()
    part = Logged(metadata(1).id, 0, (8, 9), 7)
    journal.entries[log_key(part)] = encode_log(part)
    store = await _opened(journal)
    await enqueued(store, 1)
    output = await store.read_output(metadata(1).id, 0)
    assert output is not None and output.token_ids == (8, 9)
    assert len(_token_files(journal)) == 1


async def test_a_store_that_cannot_be_opened_leaves_no_copy_of_the_token_log(journal: DictJournal) -> None:
    store = await _opened(journal)
    await _append(store, 1, await leased(store, 1, A), 0, 5)
    before = _token_files(journal)
    journal.refused_prefix = ""
    for _ in range(3):
        with pytest.raises(StoreUnavailableError, match="disk full"):
            await _opened(journal)
    assert _token_files(journal) == before
    journal.refused_prefix = None
    store = await _opened(journal)
    await enqueued(store, 1)
    output = await store.read_output(metadata(1).id, 0)
    assert output is not None and output.token_ids == (5,)


@pytest.mark.parametrize(
    ("method", "what"), [("read_bytes", "read"), ("unlink", "deleted"), ("replace", "renamed")]
)
async def test_a_token_log_that_cannot_be_used_is_one_clear_error(
    journal: DictJournal, monkeypatch: pytest.MonkeyPatch, method: str, what: str
) -> None:
    store = await _opened(journal)
    await _append(store, 1, await leased(store, 1, A), 0, 5)
    (file,) = _token_files(journal)
    if what == "renamed":
        file.write_bytes(file.read_bytes()[:-1] + b"\xff")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, method, refuse)
    error = f"the token log {file} cannot be {what}: Permission denied"
    with pytest.raises(StoreUnavailableError, match=f"^{re.escape(error)}$"):
        await _opened(journal)


async def test_a_token_log_beside_a_new_queue_file_is_put_aside_with_a_warning(journal: DictJournal) -> None:
    store = await _opened(journal)
    await _append(store, 1, await leased(store, 1, A), 0, 5)
    (file,) = _token_files(journal)
    journal.entries.clear()
    store = await _opened(journal)
    (warning,) = await store.warnings()
    assert warning.startswith(f"{file}: the token log is of another queue file")
    assert [each for each in _token_files(journal) if each.suffix == ".damaged"] == [Path(f"{file}.damaged")]
    await enqueued(store, 1)
    assert await store.read_output(metadata(1).id, 0) == OutputSlice(id=metadata(1).id, offset=0)
    assert await (await _opened(journal)).warnings() == ()


async def test_a_damaged_token_log_is_a_warning(journal: DictJournal) -> None:
    store = await _opened(journal)
    await _append(store, 1, await leased(store, 1, A), 0, 5)
    (file,) = _token_files(journal)
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    store = await _opened(journal)
    (warning,) = await store.warnings()
    assert warning.startswith(f"{file}: the token log is damaged at byte")
    assert await (await _opened(journal)).warnings() == ()


async def test_output_goes_through_a_thread_while_the_disk_is_slow(
    journal: DictJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await _opened(journal)
    epoch = await leased(store, 1, A)
    monkeypatch.setattr(TokenLog, "slow", lambda _: True)
    entry = LogEntry(id=metadata(1).id, epoch=epoch, offset=0, token_ids=(5,))
    assert store.append_now([entry]) is None
    writes = journal.writes
    assert await store.append([entry]) == [AppendResult.TAKEN]
    assert journal.writes == writes
    assert find(journal.path, 0).logs[metadata(1).id].token_ids == (5,)


async def test_a_probe_beside_a_stop_is_refused(journal: DictJournal) -> None:
    store = await _opened(journal)
    journal.open.clear()
    probe = asyncio.create_task(store.probe())
    await asyncio.sleep(0)
    await store.close()
    journal.open.set()
    with pytest.raises(StoreUnavailableError, match="closed"):
        await probe


async def test_output_does_not_wait_for_the_ends_of_others_while_the_disk_is_slow(
    journal: DictJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await _opened(journal)
    for n in (1, 2):
        await enqueued(store, n, watcher=GATEWAY)
    one, two = await leased(store, 1, A), await leased(store, 2, A)
    monkeypatch.setattr(TokenLog, "slow", lambda _: True)
    async with listening(each_slice(store.outputs(GATEWAY))) as received:
        journal.open.clear()
        end = asyncio.create_task(_append(store, 1, one, 0, 5, end=Outcome.STOP))
        await asyncio.sleep(0)
        async with asyncio.timeout(WAIT_MAX_S):
            assert await _append(store, 2, two, 0, 6) is AppendResult.TAKEN
            assert await _append(store, 2, two, 1, 7) is AppendResult.TAKEN
        assert find(journal.path, 0).logs[metadata(2).id].token_ids == (6, 7)

        async def heard() -> bool:
            return [part.token_ids for part in received if part] == [(6,), (7,)]

        await until(heard, "the tokens of the other request")
        assert not end.done()
        journal.open.set()
        assert await end is AppendResult.TAKEN


async def test_an_end_waits_for_the_output_before_it_and_output_for_the_changes_before_it(
    journal: DictJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await _opened(journal)
    epochs = {n: await leased(store, n, A) for n in (1, 2, 3)}
    monkeypatch.setattr(TokenLog, "slow", lambda _: True)
    ends = []
    async with asyncio.timeout(WAIT_MAX_S):
        for n, epoch in epochs.items():
            ends.append(asyncio.create_task(_append(store, n, epoch, 0, 5)))
            await asyncio.sleep(0)
            ends.append(asyncio.create_task(_append(store, n, epoch, 1, 6, end=Outcome.STOP)))
            await asyncio.sleep(0)
        assert await asyncio.gather(*ends) == [AppendResult.TAKEN] * 6
    store = await _opened(journal)
    for n in epochs:
        output = await store.read_output(metadata(n).id, 0)
        assert output is not None and (output.token_ids, output.outcome) == ((5, 6), Outcome.STOP)
    assert find(journal.path, await store.incarnation()).logs == {}


@pytest.mark.parametrize("others", [(), (2,)], ids=["alone", "beside another"])
@pytest.mark.parametrize("refused", ["ended/", ""], ids=["the end fails", "all writes fail"])
async def test_tokens_of_a_request_whose_end_was_not_stored_survive_a_stop(
    journal: DictJournal, others: tuple[int, ...], refused: str
) -> None:
    store = await _opened(journal)
    epochs = {n: await leased(store, n, A) for n in (1, *others)}
    for n, epoch in epochs.items():
        await _append(store, n, epoch, 0, n, 6)
    journal.refused_prefix = refused
    end = asyncio.create_task(_append(store, 1, epochs[1], 2, 7, end=Outcome.STOP))
    await asyncio.sleep(0)
    await store.close()
    with pytest.raises(StoreUnavailableError, match="disk full"):
        await end
    journal.refused_prefix = None
    store = await _opened(journal)
    for n in epochs:
        await enqueued(store, n)
        output = await store.read_output(metadata(n).id, 0)
        assert output == OutputSlice(id=metadata(n).id, offset=0, token_ids=(n, 6))


async def test_a_file_whose_logs_were_moved_goes_once_they_are_on_the_disk(
    journal: DictJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qlm.store.embedded.token_log.SEGMENTS_MAX", 0)
    store = await _opened(journal)
    epoch = await leased(store, 1, A)
    (first,) = _token_files(journal)
    assert await _append(store, 1, epoch, 0, *range(10)) is AppendResult.TAKEN
    synced = asyncio.Event()
    loop, fsync = asyncio.get_running_loop(), os.fsync

    def note(fd: int) -> None:
        assert first.exists()
        fsync(fd)
        loop.call_soon_threadsafe(synced.set)

    monkeypatch.setattr(os, "fsync", note)
    store._tokens._segment_bytes = 1
    assert await _append(store, 1, epoch, 10, 10) is AppendResult.TAKEN
    assert first.exists()

    async def gone() -> bool:
        return not first.exists()

    await until(gone, "the deletion of the file")
    assert synced.is_set()
    assert find(journal.path, 0).logs[metadata(1).id].token_ids == tuple(range(11))
    await store.close()


def _token_files(journal: DictJournal) -> list[Path]:
    return sorted(journal.path.parent.glob("*-tokens.*"))
