"""What every store does with output: an append-only log, announced in order to each watcher."""

import asyncio

from qlm.domain.ids import RequestId
from qlm.domain.lease import Epoch
from qlm.domain.outcome import Outcome
from qlm.domain.output import AppendResult, LogEntry, OutputSlice
from qlm.domain.request import RequestState
from qlm.store.contract_values import (
    GATEWAY,
    OTHER_GATEWAY,
    A,
    Subject,
    alive,
    card,
    each_slice,
    enqueued,
    hears,
    leased,
    listening,
    until,
)


def _entry(n: int, epoch: Epoch, offset: int, *token_ids: int, end: Outcome | None = None) -> LogEntry:
    return LogEntry(id=card(n).id, epoch=epoch, offset=offset, token_ids=token_ids, outcome=end)


def _slice(n: int, offset: int, *token_ids: int, end: Outcome | None = None) -> OutputSlice:
    return OutputSlice(id=card(n).id, offset=offset, token_ids=token_ids, outcome=end)


async def check_each_entry_has_its_own_result(subject: Subject) -> None:
    """In order, and a refused entry leaves the log alone."""
    store = subject.store
    await alive(store, A)
    one, two = await leased(store, 1, A), await leased(store, 2, A)
    await enqueued(store, 3)
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
            _entry(3, Epoch(one.incarnation, 0), 0, 7),
            _entry(3, Epoch(one.incarnation - 1, 1), 0, 7),
            _entry(2, Epoch(one.incarnation - 1, 1), 0, 7),
        ]
    )
    words = ["taken", "unknown", "stale", "gap", "gap", "taken", "ended", "taken"]
    words += ["stale", "unknown", "ended"]
    assert list(results) == [AppendResult(word) for word in words]
    assert await store.read_output(card(1).id, 0) == _slice(1, 0, 5, 6, 7)
    assert list(await store.append([])) == []


async def check_many_entries_at_once(subject: Subject) -> None:
    """More than any implementation takes in one go."""
    store = subject.store
    await alive(store, A)
    epochs = [await leased(store, n, A) for n in range(3)]
    entries = [_entry(n, epochs[n], offset, offset) for offset in range(100) for n in range(3)]
    assert set(await store.append(entries)) == {AppendResult.TAKEN}
    for n in range(3):
        assert await store.read_output(card(n).id, 0) == _slice(n, 0, *range(100))


async def check_the_first_token_is_dated_once(subject: Subject) -> None:
    """An entry without tokens is none."""
    store = subject.store
    await alive(store, A)
    epoch = await leased(store, 1, A)
    dates = []
    for entry in (_entry(1, epoch, 0), _entry(1, epoch, 0, 5), _entry(1, epoch, 1, 6)):
        await store.append([entry])
        record = await store.record(card(1).id)
        assert record is not None
        dates.append(record.first_token_ns)
    assert dates[0] is None
    assert dates[1] is not None
    assert dates[2] == dates[1]


async def check_an_outcome_ends_the_request(subject: Subject) -> None:
    """The lease is released, the output stays readable with its outcome and why."""
    store = subject.store
    await alive(store, A)
    epoch = await leased(store, 1, A)
    entry = LogEntry(id=card(1).id, epoch=epoch, offset=0, token_ids=(5,), outcome=Outcome.FAILED, detail="é")
    assert list(await store.append([entry])) == [AppendResult.TAKEN]
    record = await store.record(card(1).id)
    assert record is not None
    assert (record.state, record.outcome, record.lease) == (RequestState.ENDED, Outcome.FAILED, None)
    assert record.ended_ns is not None and record.output_tokens == 1
    whole = OutputSlice(id=card(1).id, offset=0, token_ids=(5,), outcome=Outcome.FAILED, detail="é")
    assert await store.read_output(card(1).id, 0) == whole
    assert not await store.release(card(1).id, epoch, "late")


async def check_output_is_read_from_any_offset(subject: Subject) -> None:
    """Beyond the end the slice is empty and starts at the end."""
    store = subject.store
    await alive(store, A)
    epoch = await leased(store, 1, A)
    token_ids = (0, 255, 256, 2**31, 2**32 - 1)
    await store.append([_entry(1, epoch, 0, *token_ids)])
    for offset in range(6):
        assert await store.read_output(card(1).id, offset) == _slice(1, offset, *token_ids[offset:])
    assert await store.read_output(card(1).id, 7) == _slice(1, 5)
    assert await store.read_output(RequestId("never heard of"), 0) is None


async def check_watchers_hear_output_in_order(subject: Subject) -> None:
    """Without gaps, whatever else is appended at the same time, and no others' requests."""
    store = subject.store
    await alive(store, A)
    await enqueued(store, 1, 2, watcher=GATEWAY)
    await enqueued(store, 3)
    epochs = {n: await leased(store, n, A) for n in (1, 2, 3)}

    async def generate(n: int) -> None:
        for offset in range(20):
            end = Outcome.STOP if offset == 19 else None
            assert list(await store.append([_entry(n, epochs[n], offset, offset, end=end)])) == ["taken"]

    async with listening(each_slice(store.outputs(GATEWAY))) as heard:
        await asyncio.gather(*(generate(n) for n in (1, 2, 3)))

        async def all_heard() -> bool:
            return len(heard) >= 40

        await until(all_heard, "40 slices")
    parts = [part for part in heard if part is not None]
    for n in (1, 2):
        expected = [_slice(n, i, i, end=Outcome.STOP if i == 19 else None) for i in range(20)]
        assert [part for part in parts if part.id == card(n).id] == expected
    assert len(parts) == 40


async def check_two_gateways_watch_one_request(subject: Subject) -> None:
    """Each hears all of it from when it watched, until it stops."""
    store = subject.store
    await alive(store, A)
    await enqueued(store, 1, watcher=GATEWAY)
    epoch = await leased(store, 1, A)
    async with (
        listening(each_slice(store.outputs(GATEWAY))) as first,
        listening(each_slice(store.outputs(OTHER_GATEWAY))) as second,
    ):
        await store.append([_entry(1, epoch, 0, 5)])
        await store.watch(card(1).id, OTHER_GATEWAY)
        await store.append([_entry(1, epoch, 1, 6)])
        assert await store.unwatch(card(1).id, GATEWAY) == 1
        await store.append([_entry(1, epoch, 2, end=Outcome.STOP)])
        await hears(first, [_slice(1, 0, 5), _slice(1, 1, 6)])
        await hears(second, [_slice(1, 1, 6), _slice(1, 2, end=Outcome.STOP)])
    assert await store.unwatch(card(1).id, OTHER_GATEWAY) == 0
    assert await store.unwatch(RequestId("never heard of"), GATEWAY) == 0


async def check_enqueue_again_adds_a_watcher(subject: Subject) -> None:
    """A retry through another gateway is heard there, too; an end other than by append as well."""
    store = subject.store
    await enqueued(store, 1, watcher=GATEWAY)
    await enqueued(store, 1, watcher=OTHER_GATEWAY)
    async with (
        listening(each_slice(store.outputs(GATEWAY))) as first,
        listening(each_slice(store.outputs(OTHER_GATEWAY))) as second,
    ):
        await store.cancel(card(1).id)
        await hears(first, [_slice(1, 0, end=Outcome.CANCELLED)])
        await hears(second, [_slice(1, 0, end=Outcome.CANCELLED)])


CHECKS = (
    check_each_entry_has_its_own_result,
    check_many_entries_at_once,
    check_the_first_token_is_dated_once,
    check_an_outcome_ends_the_request,
    check_output_is_read_from_any_offset,
    check_watchers_hear_output_in_order,
    check_two_gateways_watch_one_request,
    check_enqueue_again_adds_a_watcher,
)
