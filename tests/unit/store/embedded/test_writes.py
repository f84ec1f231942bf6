"""The embedded store with a slow or broken journal."""

import asyncio
from contextlib import suppress

import pytest

from contract.suites.store.values import (
    GATEWAY,
    A,
    each_slice,
    enqueued,
    leased,
    listening,
    metadata,
    until,
)
from qlm.domain.errors import StoreUnavailableError
from qlm.domain.outcome import Outcome
from qlm.domain.output import AppendResult, OutputSlice
from qlm.domain.ports.published import PublishedKind
from support.dict_journal import DictJournal, opened, put_tokens


async def test_nothing_is_shown_before_it_is_written(journal: DictJournal) -> None:
    store = await opened(journal)
    for n in range(3):
        await enqueued(store, n, watcher=GATEWAY)
    epochs = [await leased(store, n, A) for n in range(3)]
    async with listening(each_slice(store.outputs(GATEWAY))) as received:
        writes = journal.writes
        journal.open.clear()
        ends = [
            asyncio.create_task(put_tokens(store, n, epochs[n], 0, n, end=Outcome.STOP)) for n in range(3)
        ]
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
    store = await opened(journal)
    epochs = [await leased(store, n, A) for n in range(50)]
    before = journal.writes
    await asyncio.gather(*(put_tokens(store, n, epochs[n], 0, 5, end=Outcome.STOP) for n in range(50)))
    assert journal.writes - before <= 2


async def test_a_caller_that_gives_up_stops_no_write(journal: DictJournal) -> None:
    store = await opened(journal)
    for n in (1, 2):
        await enqueued(store, n, watcher=GATEWAY)
    epoch, other = await leased(store, 1, A), await leased(store, 2, A)
    async with listening(each_slice(store.outputs(GATEWAY))) as received:
        journal.open.clear()
        append = asyncio.create_task(put_tokens(store, 1, epoch, 0, 5, end=Outcome.STOP))
        for _ in range(5):
            await asyncio.sleep(0)
        append.cancel()
        with suppress(asyncio.CancelledError):
            await append
        journal.open.set()
        assert await put_tokens(store, 2, other, 0, 6, end=Outcome.STOP) is AppendResult.TAKEN

        async def all_heard() -> bool:
            return len(received) == 2

        await until(all_heard, "both slices")


async def test_a_journal_that_fails_is_tried_again_and_changes_are_refused_meanwhile(
    journal: DictJournal,
) -> None:
    store = await opened(journal)
    epoch, other = await leased(store, 1, A), await leased(store, 2, A)
    journal.error = OSError("disk full")
    append = asyncio.create_task(put_tokens(store, 1, epoch, 0, 5, end=Outcome.STOP))

    async def refused() -> bool:
        try:
            await put_tokens(store, 2, other, 9, 5)
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
    assert await put_tokens(store, 2, other, 0, 5) is AppendResult.TAKEN


async def test_closing_finishes_pending_writes(journal: DictJournal) -> None:
    store = await opened(journal)
    epoch = await leased(store, 1, A)
    journal.open.clear()
    append = asyncio.create_task(put_tokens(store, 1, epoch, 0, 5, end=Outcome.STOP))
    await asyncio.sleep(0)
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    journal.open.set()
    await closing
    assert await append is AppendResult.TAKEN
    with pytest.raises(StoreUnavailableError, match="closed"):
        await put_tokens(store, 1, epoch, 1, 6)


async def test_closing_gives_up_on_a_broken_journal(journal: DictJournal) -> None:
    store = await opened(journal)
    epoch = await leased(store, 1, A)
    journal.error = OSError("disk gone")
    append = asyncio.create_task(put_tokens(store, 1, epoch, 0, 5, end=Outcome.STOP))
    await asyncio.sleep(0)
    await store.close()
    with pytest.raises(StoreUnavailableError, match="disk gone"):
        await append


async def test_clusters_that_cannot_be_written_are_an_error_and_not_published(journal: DictJournal) -> None:
    store = await opened(journal)
    journal.error = StoreUnavailableError("the disk is full")
    with pytest.raises(StoreUnavailableError, match="full"):
        await store.publish(PublishedKind.CLUSTERS, b"first")
    assert await store.published(PublishedKind.CLUSTERS) is None
