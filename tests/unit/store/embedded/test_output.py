"""Output of the embedded store: when it is announced, also while the disk is slow."""

import asyncio

import pytest

from contract.suites.store.values import (
    GATEWAY,
    WAIT_MAX_S,
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
from qlm.domain.output import AppendResult, LogEntry, OutputSlice
from qlm.store.embedded.restored_logs import find
from qlm.store.embedded.token_log import TokenLog
from support.dict_journal import DictJournal, opened, put_tokens, token_files


async def test_tokens_are_in_the_log_and_announced_before_the_call_returns(journal: DictJournal) -> None:
    store = await opened(journal)
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
    store = await opened(journal)
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
    store = await opened(journal)
    await enqueued(store, 1, watcher=GATEWAY)
    epoch = await leased(store, 1, A)
    async with listening(each_slice(store.outputs(GATEWAY))) as received:
        for file in token_files(journal):
            file.unlink()
        journal.path.parent.rmdir()
        with pytest.raises(StoreUnavailableError, match="cannot be written: No such file"):
            await put_tokens(store, 1, epoch, 0, 5)
        with pytest.raises(StoreUnavailableError, match="cannot be written: No such file"):
            await store.probe()
        assert await store.read_output(metadata(1).id, 0) == OutputSlice(id=metadata(1).id, offset=0)
        assert await put_tokens(store, 1, epoch, 0, 6, end=Outcome.STOP) is AppendResult.TAKEN

        async def heard() -> bool:
            return len(received) == 1

        await until(heard, "the end")
        assert [part.token_ids for part in received if part] == [(6,)]


async def test_output_goes_through_a_thread_while_the_disk_is_slow(
    journal: DictJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(journal)
    epoch = await leased(store, 1, A)
    monkeypatch.setattr(TokenLog, "slow", lambda _: True)
    entry = LogEntry(id=metadata(1).id, epoch=epoch, offset=0, token_ids=(5,))
    assert store.append_now([entry]) is None
    writes = journal.writes
    assert await store.append([entry]) == [AppendResult.TAKEN]
    assert journal.writes == writes
    assert find(journal.path, 0).logs[metadata(1).id].token_ids == (5,)


async def test_a_probe_beside_a_stop_is_refused(journal: DictJournal) -> None:
    store = await opened(journal)
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
    store = await opened(journal)
    for n in (1, 2):
        await enqueued(store, n, watcher=GATEWAY)
    one, two = await leased(store, 1, A), await leased(store, 2, A)
    monkeypatch.setattr(TokenLog, "slow", lambda _: True)
    async with listening(each_slice(store.outputs(GATEWAY))) as received:
        journal.open.clear()
        end = asyncio.create_task(put_tokens(store, 1, one, 0, 5, end=Outcome.STOP))
        await asyncio.sleep(0)
        async with asyncio.timeout(WAIT_MAX_S):
            assert await put_tokens(store, 2, two, 0, 6) is AppendResult.TAKEN
            assert await put_tokens(store, 2, two, 1, 7) is AppendResult.TAKEN
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
    store = await opened(journal)
    epochs = {n: await leased(store, n, A) for n in (1, 2, 3)}
    monkeypatch.setattr(TokenLog, "slow", lambda _: True)
    ends = []
    async with asyncio.timeout(WAIT_MAX_S):
        for n, epoch in epochs.items():
            ends.append(asyncio.create_task(put_tokens(store, n, epoch, 0, 5)))
            await asyncio.sleep(0)
            ends.append(asyncio.create_task(put_tokens(store, n, epoch, 1, 6, end=Outcome.STOP)))
            await asyncio.sleep(0)
        assert await asyncio.gather(*ends) == [AppendResult.TAKEN] * 6
    store = await opened(journal)
    for n in epochs:
        output = await store.read_output(metadata(n).id, 0)
        assert output is not None and (output.token_ids, output.outcome) == ((5, 6), Outcome.STOP)
    assert find(journal.path, await store.incarnation()).logs == {}
