"""Contract of every store: index, list, cancel, expire and retain requests."""

from dataclasses import replace

from contract.suites.store.values import (
    ARRIVAL_NS,
    BATCH,
    CHAT,
    GATEWAY,
    A,
    Subject,
    alive,
    each_slice,
    enqueued,
    leased,
    listening,
    metadata,
    receives,
)
from qlm.domain.errors import StoreEmptiedError
from qlm.domain.ids import RequestId
from qlm.domain.lease_answer import Over
from qlm.domain.notices import CancelAsked, LeaseHeld
from qlm.domain.outcome import Outcome
from qlm.domain.output import AppendResult, LogEntry, OutputSlice
from qlm.domain.ports.store import Store
from qlm.domain.request import Request, RequestState
from qlm.domain.slo import TokenSlo
from qlm.domain.view import Enqueued, RequestFilter


async def _ids(store: Store, where: RequestFilter) -> list[RequestId]:
    return [record.metadata.id for record in await store.records(where)]


async def test_enqueue_indexes_a_request_once(subject: Subject) -> None:
    """A retry returns the existing record."""
    store = subject.store
    first = await store.enqueue(metadata(1))
    assert first.created
    assert first.record.state is RequestState.QUEUED
    assert first.record.metadata == metadata(1)
    assert [event.what for event in first.record.events] == ["accepted"]
    again = await store.enqueue(replace(metadata(1), tenant="someone else"))
    assert again == Enqueued(created=False, record=first.record)
    assert (await store.view()).classes[0].queued == 1


async def test_enqueue_refuses_another_incarnation(subject: Subject) -> None:
    """A request published before may have ended since; only its message can show that."""
    store = subject.store
    former = await store.incarnation()
    await store.enqueue(metadata(1), None, former)
    store = await subject.emptied()
    try:
        await store.enqueue(metadata(1), GATEWAY, former)
        raise AssertionError("it was indexed")
    except StoreEmptiedError:
        assert await store.record(metadata(1).id) is None
    assert (await store.enqueue(metadata(1), GATEWAY, await store.incarnation())).created


async def test_record_equals_the_accepted_request(subject: Subject) -> None:
    """Metadata is returned unchanged, to the nanosecond, without the prompt."""
    store = subject.store
    fields = {name: getattr(metadata(3), name) for name in metadata(3).__dataclass_fields__}
    request = Request(**fields | {"prompt_ids": tuple(range(13)), "prompt_tokens": 13})
    created = (await store.enqueue(request)).record
    assert created == await store.record(request.id)
    assert created.metadata == request.metadata()
    assert await store.record(RequestId("unknown")) is None


async def test_records_filters_and_limits(subject: Subject) -> None:
    """Records come newest arrival first, filtered by state and model, up to the limit."""
    store = subject.store
    await alive(store, A)
    await enqueued(store, 1, 2, 3, 4)
    await store.enqueue(metadata(5, cls=BATCH))
    await leased(store, 2, A)
    epoch = await leased(store, 3, A)
    assert await store.park(metadata(3).id, epoch, "room")
    await store.cancel(metadata(4).id)
    newest_first = [metadata(n).id for n in (5, 4, 3, 2, 1)]
    assert await _ids(store, RequestFilter()) == newest_first
    assert await _ids(store, RequestFilter(limit=2)) == newest_first[:2]
    assert await _ids(store, RequestFilter(model="mistral")) == [metadata(5).id]
    assert await _ids(store, RequestFilter(state=RequestState.QUEUED)) == [metadata(5).id, metadata(1).id]
    assert await _ids(store, RequestFilter(state=RequestState.RUNNING)) == [metadata(2).id]
    assert await _ids(store, RequestFilter(state=RequestState.PARKED)) == [metadata(3).id]
    assert await _ids(store, RequestFilter(state=RequestState.ENDED)) == [metadata(4).id]


async def test_cancel_ends_a_waiting_request_at_once(subject: Subject) -> None:
    """It leaves the arrival order; another cancel changes nothing."""
    store = subject.store
    await enqueued(store, 1, 2)
    ended = await store.cancel(metadata(1).id)
    assert ended is not None
    assert (ended.state, ended.outcome) == (RequestState.ENDED, Outcome.CANCELLED)
    assert ended.ended_ns is not None
    assert (await store.view()).classes[0].queued == 1
    assert await store.cancel(metadata(1).id, Outcome.EXPIRED) == ended
    assert await store.cancel(RequestId("unknown")) is None


async def test_cancel_asks_the_holder(subject: Subject) -> None:
    """A running or parked request stays until its holder ends it; the outcome asked first counts."""
    store = subject.store
    await alive(store, A)
    epoch = await leased(store, 1, A)
    async with listening(store.notices(A.instance)) as received:
        asked = await store.cancel(metadata(1).id, Outcome.STOP)
        assert asked is not None and asked.end_asked is Outcome.STOP
        assert asked.settled and not asked.cancel_requested
        assert asked.state is RequestState.RUNNING
        lease = LeaseHeld(id=metadata(1).id, epoch=epoch)
        stop = CancelAsked(id=metadata(1).id, outcome=Outcome.STOP)
        await receives(received, [lease, stop])
        await store.park(metadata(1).id, epoch, "room")
        again = await store.cancel(metadata(1).id, Outcome.CANCELLED)
        assert again is not None and again.state is RequestState.PARKED
        await receives(received, [lease, stop, stop])


async def test_a_cancelled_request_ends_with_the_reason_of_the_first_cancel(subject: Subject) -> None:
    """Whether it waits, runs, or comes back; its holder does not know the reason."""
    store = subject.store
    await alive(store, A)
    epochs = {n: await leased(store, n, A) for n in (1, 2, 3)}
    await enqueued(store, 4)
    await store.watch(metadata(1), GATEWAY)
    for n in (1, 2, 3, 4):
        await store.cancel(metadata(n).id, Outcome.CANCELLED, "its client left")
        await store.cancel(metadata(n).id, Outcome.CANCELLED, "an operator")
    async with listening(each_slice(store.outputs(GATEWAY))) as received:
        ends = (((5, 6), "asked"), ((), ""))
        for n, (token_ids, detail) in enumerate(ends, 1):
            entry = LogEntry(
                id=metadata(n).id,
                epoch=epochs[n],
                offset=0,
                token_ids=token_ids,
                outcome=Outcome.CANCELLED,
                detail=detail,
            )
            assert await store.append([entry]) == [AppendResult.TAKEN]
        why = "its client left"
        await receives(received, [OutputSlice(metadata(1).id, 0, (5, 6), Outcome.CANCELLED, why)])
    await store.release(metadata(3).id, epochs[3], "drained")
    for n in (1, 2, 3, 4):
        log = await store.read_output(metadata(n).id, 0)
        assert log is not None
        assert (log.outcome, log.detail) == (Outcome.CANCELLED, why), n


async def test_an_engine_that_fails_a_cancelled_request_says_why_itself(subject: Subject) -> None:
    store = subject.store
    await alive(store, A)
    epoch = await leased(store, 1, A)
    await store.cancel(metadata(1).id, Outcome.CANCELLED, "its client left")
    failed = LogEntry(id=metadata(1).id, epoch=epoch, offset=0, outcome=Outcome.FAILED, detail="it burns")
    assert await store.append([failed]) == [AppendResult.TAKEN]
    log = await store.read_output(metadata(1).id, 0)
    assert log is not None
    assert (log.outcome, log.detail) == (Outcome.FAILED, "it burns")


async def test_cancel_of_a_dead_holders_request_ends_it(subject: Subject) -> None:
    """There is no live holder to ask."""
    store = subject.store
    await alive(store, A)
    await leased(store, 1, A)
    await store.leave(A)
    ended = await store.cancel(metadata(1).id)
    assert ended is not None and ended.outcome is Outcome.CANCELLED
    assert ended.lease is None


async def test_withdraw_leaves_a_cancelled_request_and_nothing_that_waits(subject: Subject) -> None:
    """An agent that pulls its message drops it; another withdrawal changes nothing."""
    store = subject.store
    await alive(store, A)
    assert await store.withdraw(metadata(1))
    record = await store.record(metadata(1).id)
    assert record is not None
    assert (record.state, record.outcome) == (RequestState.ENDED, Outcome.CANCELLED)
    assert [event.what for event in record.events] == ["accepted", "ended"]
    assert sum(each.queued for each in (await store.view()).classes) == 0
    assert await store.lease(metadata(1), A, None) == Over(outcome=Outcome.CANCELLED)
    assert not await store.withdraw(metadata(1))
    assert await store.record(metadata(1).id) == record


async def test_withdraw_does_not_touch_a_known_request(subject: Subject) -> None:
    """The known request may have been accepted."""
    store = subject.store
    await alive(store, A)
    await enqueued(store, 1)
    await leased(store, 2, A)
    for n, state in ((1, RequestState.QUEUED), (2, RequestState.RUNNING)):
        assert not await store.withdraw(metadata(n))
        record = await store.record(metadata(n).id)
        assert record is not None and record.state is state
        assert not record.cancel_requested


async def test_expire_ends_late_waiting_requests(subject: Subject) -> None:
    """Only waiting requests with a drop time expire; earliest first, up to the limit."""
    store = subject.store
    await alive(store, A)
    await enqueued(store, 1)
    for n in (2, 3, 4, 5):
        await store.enqueue(metadata(n, drop=True))
    epoch = await leased(store, 3, A)
    due_ns = metadata(4, drop=True).drop_at_ns
    assert due_ns == ARRIVAL_NS + 4 + 10_000_000_000
    assert list(await store.expire(due_ns, limit=1)) == [metadata(2).id]
    assert list(await store.expire(due_ns)) == [metadata(4).id]
    record = await store.record(metadata(4).id)
    assert record is not None and (record.outcome, record.ended_ns) == (Outcome.EXPIRED, due_ns)
    assert await store.release(metadata(3).id, epoch, "drain")
    assert list(await store.expire(due_ns)) == [metadata(3).id]
    assert list(await store.expire(due_ns)) == []


async def test_waiting_requests_are_listed_by_class_and_ended_while_they_wait(subject: Subject) -> None:
    store = subject.store
    await alive(store, A)
    await enqueued(store, 3, 1, 2)
    assert list(await store.waiting(CHAT)) == [metadata(n).id for n in (1, 2, 3)]
    assert list(await store.waiting(BATCH)) == []
    epoch = await leased(store, 2, A)
    assert list(await store.waiting(CHAT)) == [metadata(n).id for n in (1, 3)]
    asked = [metadata(2).id, metadata(3).id, RequestId("unknown")]
    assert list(await store.end_waiting(asked, Outcome.OUTPUT_LOST, "no message")) == [metadata(3).id]
    log = await store.read_output(metadata(3).id, 0)
    assert log is not None and (log.outcome, log.detail) == (Outcome.OUTPUT_LOST, "no message")
    assert list(await store.end_waiting(asked, Outcome.OUTPUT_LOST, "no message")) == []
    assert await store.release(metadata(2).id, epoch, "drain")
    assert list(await store.waiting(CHAT)) == [metadata(n).id for n in (1, 2)]


async def test_a_first_token_in_time_is_no_miss(subject: Subject) -> None:
    """A request with a first-token objective continues after its first token, even if it waits again."""
    store = subject.store
    await alive(store, A)
    for n in (1, 2):
        await store.enqueue(replace(metadata(n, drop=True), slo=TokenSlo(ttft_ms=10_000)))
    epoch = await leased(store, 1, A)
    first = LogEntry(id=metadata(1).id, epoch=epoch, offset=0, token_ids=(7,))
    assert await store.append([first]) == [AppendResult.TAKEN]
    assert await store.release(metadata(1).id, epoch, "drain")
    assert list(await store.expire(ARRIVAL_NS + 60_000_000_000)) == [metadata(2).id]
    record = await store.record(metadata(1).id)
    assert record is not None and record.state is RequestState.QUEUED


async def test_results_max_drops_the_oldest_ended(subject: Subject) -> None:
    """The limit is 4 here; unfinished requests do not count and stay."""
    store = subject.store
    await enqueued(store, *range(1, 10))
    for n in (9, 3, 5, 4, 6, 7):
        await store.cancel(metadata(n).id)
    assert await _ids(store, RequestFilter()) == [metadata(n).id for n in (8, 7, 6, 5, 4, 2, 1)]
    assert await store.record(metadata(9).id) is None
    assert await store.read_output(metadata(3).id, 0) is None


async def test_events_record_the_history(subject: Subject) -> None:
    """Each change is an event with its instance and reason."""
    store = subject.store
    await alive(store, A)
    await enqueued(store, 1)
    epoch = await leased(store, 1, A)
    await store.park(metadata(1).id, epoch, "room")
    await store.resume(metadata(1).id, epoch)
    await store.release(metadata(1).id, epoch, "drain")
    epoch = await leased(store, 1, A)
    await store.append(
        [LogEntry(id=metadata(1).id, epoch=epoch, offset=0, outcome=Outcome.FAILED, detail="refused")]
    )
    record = await store.record(metadata(1).id)
    assert record is not None
    assert [(e.what, e.why, e.instance) for e in record.events] == [
        ("accepted", "", None),
        ("leased", "", "a"),
        ("evicted", "room", "a"),
        ("resumed", "", "a"),
        ("returned", "drain", "a"),
        ("leased", "", "a"),
        ("ended", "refused", "a"),
    ]
    times = [event.at_ns for event in record.events]
    assert times == sorted(times)


async def test_events_are_bounded(subject: Subject) -> None:
    """The limit is 8 here; the oldest are dropped."""
    store = subject.store
    await alive(store, A)
    epoch = await leased(store, 1, A)
    for n in range(6):
        await store.park(metadata(1).id, epoch, str(n))
        await store.resume(metadata(1).id, epoch)
    record = await store.record(metadata(1).id)
    assert record is not None
    assert [event.why for event in record.events] == ["2", "", "3", "", "4", "", "5", ""]


async def test_means_are_over_the_class(subject: Subject) -> None:
    """They cover prompts and limits of all accepted requests."""
    store = subject.store
    await alive(store, A)
    await enqueued(store, 1, 2, 3, 4, watcher=GATEWAY)
    for n, outcome in ((1, Outcome.STOP), (2, Outcome.LENGTH), (3, Outcome.FAILED)):
        epoch = await leased(store, n, A)
        await store.append(
            [LogEntry(id=metadata(n).id, epoch=epoch, offset=0, token_ids=(5,) * n * n, outcome=outcome)]
        )
    (view,) = (await store.view()).classes
    assert (view.cls, view.queued) == (CHAT, 1)
    assert (view.accepted, view.mean_prompt_tokens, view.var_prompt_tokens) == (4, 12.5, 1.25)
    assert (view.mean_max_tokens, view.var_max_tokens) == (100.0, 0.0)
    assert view.finished == 2
