"""Contract of every store: an append-only output log, announced in order to each watcher."""

import asyncio
from dataclasses import replace

from contract.suites.store.values import (
    GATEWAY,
    OTHER_GATEWAY,
    A,
    Subject,
    alive,
    each_slice,
    enqueued,
    leased,
    listening,
    metadata,
    receives,
    until,
)
from qlm.domain.ids import RequestId
from qlm.domain.lease import Epoch
from qlm.domain.lease_answer import Granted
from qlm.domain.outcome import Outcome
from qlm.domain.output import AppendResult, LogEntry, OutputSlice
from qlm.domain.request import NS_PER_S, RequestState
from qlm.domain.slo import ReadingSlo


def _entry(n: int, epoch: Epoch, offset: int, *token_ids: int, end: Outcome | None = None) -> LogEntry:
    return LogEntry(id=metadata(n).id, epoch=epoch, offset=offset, token_ids=token_ids, outcome=end)


def _slice(n: int, offset: int, *token_ids: int, end: Outcome | None = None) -> OutputSlice:
    return OutputSlice(id=metadata(n).id, offset=offset, token_ids=token_ids, outcome=end)


async def test_each_entry_has_its_own_result(subject: Subject) -> None:
    """Results come in order, and a rejected entry does not change the log."""
    store = subject.store
    await alive(store, A)
    one, two = await leased(store, 1, A), await leased(store, 2, A)
    three = await leased(store, 3, A)
    await store.release(metadata(3).id, three, "drain")
    stale = Epoch(one.incarnation, one.n + 1)
    results = await store.append(
        [
            _entry(1, one, 0, 5, 6),
            _entry(9, one, 0, 5),
            _entry(1, stale, 9, 7),
            _entry(1, one, 1, 7),
            _entry(1, one, 3, 7),
            _entry(2, two, 0, end=Outcome.FAILED),
            _entry(2, stale, 9, 7),
            _entry(1, one, 2, 7),
            _entry(3, three, 0, 7),
            _entry(3, Epoch(three.incarnation, 0), 0, 7),
            _entry(3, Epoch(three.incarnation - 1, 1), 0, 7),
            _entry(2, Epoch(one.incarnation - 1, 1), 0, 7),
        ]
    )
    words = ["taken", "unknown", "stale", "gap", "gap", "taken", "ended", "taken"]
    words += ["stale", "stale", "unknown", "ended"]
    assert list(results) == [AppendResult(word) for word in words]
    assert await store.read_output(metadata(1).id, 0) == _slice(1, 0, 5, 6, 7)
    assert list(await store.append([])) == []


async def test_many_entries_at_once(subject: Subject) -> None:
    """More entries than any implementation writes in one batch."""
    store = subject.store
    await alive(store, A)
    epochs = [await leased(store, n, A) for n in range(3)]
    entries = [_entry(n, epochs[n], offset, offset) for offset in range(100) for n in range(3)]
    assert set(await store.append(entries)) == {AppendResult.TAKEN}
    for n in range(3):
        assert await store.read_output(metadata(n).id, 0) == _slice(n, 0, *range(100))


async def test_the_first_token_is_dated_once(subject: Subject) -> None:
    """An entry without tokens is not announced."""
    store = subject.store
    await alive(store, A)
    epoch = await leased(store, 1, A)
    dates = []
    for entry in (_entry(1, epoch, 0), _entry(1, epoch, 0, 5), _entry(1, epoch, 1, 6)):
        await store.append([entry])
        record = await store.record(metadata(1).id)
        assert record is not None
        dates.append(record.first_token_ns)
    assert dates[0] is None
    assert dates[1] is not None
    assert dates[2] == dates[1]


async def test_a_record_has_the_lateness_of_the_reader(subject: Subject) -> None:
    """The store notes it as tokens come, since no later token gives the wait back."""
    store = subject.store
    await alive(store, A)
    slo = ReadingSlo(ttft_ms=1000.0, tokens_per_s=0.5)
    await enqueued(store, 2)
    probe = await store.record(metadata(2).id)
    assert probe is not None
    arrival_ns = probe.events[0].at_ns - 10 * NS_PER_S  # the first token is 9 s late, a second one only 7 s
    reading = replace(metadata(1), slo=slo, arrival_ns=arrival_ns)
    await store.enqueue(reading)
    waiting = await store.record(reading.id)
    assert waiting is not None
    assert waiting.reader_late_s is None
    granted = await store.lease(reading, A, None)
    assert isinstance(granted, Granted)
    epoch = granted.lease.epoch
    await store.append([_entry(1, epoch, 0, 5)])
    first = await store.record(reading.id)
    await store.append([_entry(1, epoch, 1, 6, 7, end=Outcome.LENGTH)])
    last = await store.record(reading.id)
    assert first is not None
    assert last is not None
    assert first.first_token_ns is not None
    late_s = (first.first_token_ns - arrival_ns) / NS_PER_S - 1
    assert late_s >= 9
    assert first.reader_late_s is not None
    assert abs(first.reader_late_s - late_s) < 1e-6
    assert last.reader_late_s == first.reader_late_s
    assert last.instance == A.instance


async def test_an_outcome_ends_the_request(subject: Subject) -> None:
    """The lease is released; the output stays readable with its outcome and detail."""
    store = subject.store
    await alive(store, A)
    epoch = await leased(store, 1, A)
    entry = LogEntry(
        id=metadata(1).id, epoch=epoch, offset=0, token_ids=(5,), outcome=Outcome.FAILED, detail="é"
    )
    assert list(await store.append([entry])) == [AppendResult.TAKEN]
    record = await store.record(metadata(1).id)
    assert record is not None
    assert (record.state, record.outcome, record.lease) == (RequestState.ENDED, Outcome.FAILED, None)
    assert record.ended_ns is not None and record.output_tokens == 1
    whole = OutputSlice(id=metadata(1).id, offset=0, token_ids=(5,), outcome=Outcome.FAILED, detail="é")
    assert await store.read_output(metadata(1).id, 0) == whole
    assert not await store.release(metadata(1).id, epoch, "late")


async def test_output_is_read_from_any_offset(subject: Subject) -> None:
    """Beyond the end the slice is empty and starts at the end."""
    store = subject.store
    await alive(store, A)
    epoch = await leased(store, 1, A)
    token_ids = (0, 255, 256, 2**31, 2**32 - 1)
    await store.append([_entry(1, epoch, 0, *token_ids)])
    for offset in range(6):
        assert await store.read_output(metadata(1).id, offset) == _slice(1, offset, *token_ids[offset:])
    assert await store.read_output(metadata(1).id, 7) == _slice(1, 5)
    assert await store.read_output(RequestId("unknown"), 0) is None


async def test_watchers_receive_output_in_order(subject: Subject) -> None:
    """The output has no gaps under concurrent appends, and is of watched requests only."""
    store = subject.store
    await alive(store, A)
    await enqueued(store, 1, 2, watcher=GATEWAY)
    await enqueued(store, 3)
    epochs = {n: await leased(store, n, A) for n in (1, 2, 3)}

    async def generate(n: int) -> None:
        for offset in range(20):
            end = Outcome.STOP if offset == 19 else None
            assert list(await store.append([_entry(n, epochs[n], offset, offset, end=end)])) == ["taken"]

    async with listening(each_slice(store.outputs(GATEWAY))) as received:
        await asyncio.gather(*(generate(n) for n in (1, 2, 3)))

        async def all_heard() -> bool:
            return len(received) >= 40

        await until(all_heard, "40 slices")
    parts = [part for part in received if part is not None]
    for n in (1, 2):
        expected = [_slice(n, i, i, end=Outcome.STOP if i == 19 else None) for i in range(20)]
        assert [part for part in parts if part.id == metadata(n).id] == expected
    assert len(parts) == 40


async def test_two_gateways_watch_one_request(subject: Subject) -> None:
    """Each watcher receives all output from its subscription to its end."""
    store = subject.store
    await alive(store, A)
    await enqueued(store, 1, watcher=GATEWAY)
    epoch = await leased(store, 1, A)
    async with (
        listening(each_slice(store.outputs(GATEWAY))) as first,
        listening(each_slice(store.outputs(OTHER_GATEWAY))) as second,
    ):
        await store.append([_entry(1, epoch, 0, 5)])
        await store.watch(metadata(1), OTHER_GATEWAY)
        await store.append([_entry(1, epoch, 1, 6)])
        assert await store.unwatch(metadata(1).id, GATEWAY) == 1
        await store.append([_entry(1, epoch, 2, end=Outcome.STOP)])
        await receives(first, [_slice(1, 0, 5), _slice(1, 1, 6)])
        await receives(second, [_slice(1, 1, 6), _slice(1, 2, end=Outcome.STOP)])
    assert await store.unwatch(metadata(1).id, OTHER_GATEWAY) == 0
    assert await store.unwatch(RequestId("unknown"), GATEWAY) == 0


async def test_enqueue_again_adds_a_watcher(subject: Subject) -> None:
    """A retry through another gateway receives the output also, and an end by cancellation."""
    store = subject.store
    await enqueued(store, 1, watcher=GATEWAY)
    await enqueued(store, 1, watcher=OTHER_GATEWAY)
    async with (
        listening(each_slice(store.outputs(GATEWAY))) as first,
        listening(each_slice(store.outputs(OTHER_GATEWAY))) as second,
    ):
        await store.cancel(metadata(1).id)
        await receives(first, [_slice(1, 0, end=Outcome.CANCELLED)])
        await receives(second, [_slice(1, 0, end=Outcome.CANCELLED)])


async def test_what_is_appended_at_once_is_announced_and_read_at_once(subject: Subject) -> None:
    """A store that cannot, or is asked to end a request, has done nothing; `append` does it then."""
    store = subject.store
    await enqueued(store, 1, 2, watcher=GATEWAY)
    one, two = await leased(store, 1, A), await leased(store, 2, A)
    async with listening(each_slice(store.outputs(GATEWAY))) as received:
        entries = [_entry(1, one, 0, 5, 6), _entry(2, two, 1, 7), _entry(3, two, 0, 7)]
        results = store.append_now(entries)
        if results is None:
            assert await store.read_output(metadata(1).id, 0) == _slice(1, 0)
            results = await store.append(entries)
        assert list(results) == [AppendResult.TAKEN, AppendResult.GAP, AppendResult.UNKNOWN]
        assert await store.read_output(metadata(1).id, 0) == _slice(1, 0, 5, 6)
        assert store.append_now([_entry(1, one, 2, end=Outcome.STOP)]) is None
        assert await store.append([_entry(1, one, 2, end=Outcome.STOP)]) == [AppendResult.TAKEN]

        async def all_heard() -> bool:
            return len(received) == 2

        await until(all_heard, "both slices")
        assert received == [_slice(1, 0, 5, 6), _slice(1, 2, end=Outcome.STOP)]
