"""Embedded store: state that survives a crash, and behaviour with a slow or broken journal."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

import pytest

from contract.suites.store.values import (
    GATEWAY,
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
from qlm.store.core.limits import StoreLimits
from qlm.store.embedded.store import EmbeddedStore


class SystemClock:
    def now_ns(self) -> int:
        return time.time_ns()


class DictJournal:
    """Journal in memory that survives the store, as a file does; its writes can be blocked."""

    def __init__(self) -> None:
        self.entries: dict[str, bytes] = {}
        self.durable_writes = 0
        self.writes = 0
        self.open = asyncio.Event()
        self.open.set()
        self.error: Exception | None = None

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
        self.entries.update(puts)
        for key in deletes:
            self.entries.pop(key, None)
        self.durable_writes += durable


async def _opened(journal: DictJournal, limits: StoreLimits | None = None) -> EmbeddedStore:
    """Open a store; the one before is simply dropped, as by a kill -9."""
    return await EmbeddedStore.open(SystemClock(), journal, limits, retry_s=0.005)


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


async def test_an_ended_request_comes_back_whole() -> None:
    journal = DictJournal()
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


async def test_extensions_written_before_the_first_token_come_back_with_the_log() -> None:
    journal, extensions = DictJournal(), LogExtensions(render_state="x", render_state_tokens=0)
    store = await _opened(journal)
    await alive(store, A)
    epoch = await leased(store, 1, A)
    await store.append([LogEntry(id=metadata(1).id, epoch=epoch, offset=0, extensions=extensions)])
    await _append(store, 1, epoch, 0, 5)
    store = await _opened(journal)
    await enqueued(store, 1)
    whole = OutputSlice(id=metadata(1).id, offset=0, token_ids=(5,), extensions=extensions)
    assert await store.read_output(metadata(1).id, 0) == whole


async def test_the_log_of_an_unfinished_request_waits_for_its_message() -> None:
    journal = DictJournal()
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


async def test_an_ended_request_leaves_one_entry_in_the_journal() -> None:
    journal = DictJournal()
    store = await _opened(journal)
    await _ended(store, 1)
    store = await _opened(journal)
    epoch = await leased(store, 2, A)
    await _append(store, 2, epoch, 0, 5)
    store = await _opened(journal)
    await enqueued(store, 2)
    await store.cancel(metadata(2).id)
    assert sorted(journal.entries) == ["ended/r0001", "ended/r0002", "incarnation"]


async def test_ends_are_durable_and_appends_need_not_be() -> None:
    journal = DictJournal()
    store = await _opened(journal)
    epoch = await leased(store, 1, A)
    at_start = journal.durable_writes
    await _append(store, 1, epoch, 0, 5)
    assert journal.durable_writes == at_start
    await _append(store, 1, epoch, 1, end=Outcome.STOP)
    assert journal.durable_writes == at_start + 1


async def test_each_opening_is_a_larger_incarnation_even_if_the_clock_went_back() -> None:
    class Stopped:
        def now_ns(self) -> int:
            return 7

    journal = DictJournal()
    seen = [await (await EmbeddedStore.open(Stopped(), journal)).incarnation() for _ in range(3)]
    assert seen == [7, 8, 9]


async def test_results_beyond_the_limits_leave_the_journal_too() -> None:
    journal = DictJournal()
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


async def test_nothing_is_shown_before_it_is_written() -> None:
    journal = DictJournal()
    store = await _opened(journal)
    await enqueued(store, 1, watcher=GATEWAY)
    epoch = await leased(store, 1, A)
    async with listening(each_slice(store.outputs(GATEWAY))) as received:
        writes = journal.writes
        journal.open.clear()
        appends = [asyncio.create_task(_append(store, 1, epoch, offset, offset)) for offset in range(3)]
        read = asyncio.create_task(store.read_output(metadata(1).id, 0))

        async def writing() -> bool:
            return journal.writes > writes

        await until(writing, "the write")
        for _ in range(20):
            await asyncio.sleep(0)
        assert not any(task.done() for task in (*appends, read))
        assert received == []
        await enqueued(store, 2)
        journal.open.set()
        assert await asyncio.gather(*appends) == [AppendResult.TAKEN] * 3
        seen = await read
        assert seen is not None and seen.token_ids == (0, 1, 2)

        async def all_heard() -> bool:
            return len(received) == 3

        await until(all_heard, "three slices")
        assert [part.token_ids for part in received if part] == [(0,), (1,), (2,)]


async def test_appends_that_meet_share_a_write() -> None:
    journal = DictJournal()
    store = await _opened(journal)
    epochs = [await leased(store, n, A) for n in range(50)]
    before = journal.writes
    await asyncio.gather(*(_append(store, n, epochs[n], 0, 5) for n in range(50)))
    assert journal.writes - before <= 2


async def test_a_caller_that_gives_up_stops_no_write() -> None:
    journal = DictJournal()
    store = await _opened(journal)
    await enqueued(store, 1, watcher=GATEWAY)
    epoch = await leased(store, 1, A)
    async with listening(each_slice(store.outputs(GATEWAY))) as received:
        journal.open.clear()
        append = asyncio.create_task(_append(store, 1, epoch, 0, 5))
        for _ in range(5):
            await asyncio.sleep(0)
        append.cancel()
        with suppress(asyncio.CancelledError):
            await append
        journal.open.set()
        assert await _append(store, 1, epoch, 1, 6) is AppendResult.TAKEN

        async def all_heard() -> bool:
            return len(received) == 2

        await until(all_heard, "both slices")


async def test_a_journal_that_fails_is_tried_again_and_changes_are_refused_meanwhile() -> None:
    journal = DictJournal()
    store = await _opened(journal)
    epoch, other = await leased(store, 1, A), await leased(store, 2, A)
    journal.error = OSError("disk full")
    append = asyncio.create_task(_append(store, 1, epoch, 0, 5))

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


async def test_closing_finishes_pending_writes() -> None:
    journal = DictJournal()
    store = await _opened(journal)
    epoch = await leased(store, 1, A)
    journal.open.clear()
    append = asyncio.create_task(_append(store, 1, epoch, 0, 5))
    await asyncio.sleep(0)
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    journal.open.set()
    await closing
    assert await append is AppendResult.TAKEN
    with pytest.raises(StoreUnavailableError, match="closed"):
        await _append(store, 1, epoch, 1, 6)


async def test_the_history_comes_back_and_waits_for_no_disk() -> None:
    journal = DictJournal()
    store = await _opened(journal)
    journal.open.clear()
    await store.publish(PublishedKind.HISTORY, b"first")
    await store.publish(PublishedKind.HISTORY, b"second")
    assert await store.published(PublishedKind.HISTORY) == b"second"
    journal.open.set()
    await store.close()
    assert await (await _opened(journal)).published(PublishedKind.HISTORY) == b"second"


async def test_closing_gives_up_on_a_broken_journal() -> None:
    journal = DictJournal()
    store = await _opened(journal)
    epoch = await leased(store, 1, A)
    journal.error = OSError("disk gone")
    append = asyncio.create_task(_append(store, 1, epoch, 0, 5))
    await asyncio.sleep(0)
    await store.close()
    with pytest.raises(StoreUnavailableError, match="disk gone"):
        await append


@pytest.mark.parametrize("key", ["log/0/r1", "ended/r1", "extensions/r1"])
async def test_a_journal_of_another_kind_is_refused(key: str) -> None:
    journal = DictJournal()
    journal.entries[key] = b"abc"
    with pytest.raises(UndecodableDataError, match=key):
        await _opened(journal)


async def test_a_journal_with_a_hole_is_refused() -> None:
    journal = DictJournal()
    store = await _opened(journal)
    epoch = await leased(store, 1, A)
    await _append(store, 1, epoch, 0, 5)
    await _append(store, 1, epoch, 1, 6)
    del journal.entries["log/0/r0001"]
    with pytest.raises(UndecodableDataError, match="lacks tokens 0 to 1"):
        await _opened(journal)


async def test_an_answer_of_which_tokens_are_missing_in_the_journal_is_lost() -> None:
    journal = DictJournal()
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


async def test_clusters_survive_a_kill_and_are_written_when_they_change() -> None:
    journal = DictJournal()
    store = await _opened(journal)
    assert await store.published(PublishedKind.CLUSTERS) is None
    await store.publish(PublishedKind.CLUSTERS, b"first")
    await store.publish(PublishedKind.CLUSTERS, b"second")
    writes = journal.writes
    await store.publish(PublishedKind.CLUSTERS, b"second")
    assert journal.writes == writes
    assert await (await _opened(journal)).published(PublishedKind.CLUSTERS) == b"second"


async def test_clusters_that_cannot_be_written_are_an_error_and_not_published() -> None:
    journal = DictJournal()
    store = await _opened(journal)
    journal.error = StoreUnavailableError("the disk is full")
    with pytest.raises(StoreUnavailableError, match="full"):
        await store.publish(PublishedKind.CLUSTERS, b"first")
    assert await store.published(PublishedKind.CLUSTERS) is None
