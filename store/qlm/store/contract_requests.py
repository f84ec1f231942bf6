"""What every store does with requests: index, list, cancel, expire, keep."""

from dataclasses import replace

from qlm.domain.errors import StoreEmptiedError
from qlm.domain.ids import RequestId
from qlm.domain.lease_answer import Over
from qlm.domain.notices import CancelAsked
from qlm.domain.outcome import Outcome
from qlm.domain.output import AppendResult, LogEntry
from qlm.domain.ports.store import Store
from qlm.domain.request import Request, RequestState
from qlm.domain.slo import TokenSlo
from qlm.domain.view import Enqueued, RequestFilter
from qlm.store.contract_values import (
    ARRIVAL_NS,
    BATCH,
    CHAT,
    GATEWAY,
    A,
    Subject,
    alive,
    card,
    enqueued,
    hears,
    leased,
    listening,
)


async def _ids(store: Store, where: RequestFilter) -> list[RequestId]:
    return [record.card.id for record in await store.records(where)]


async def check_enqueue_indexes_a_request_once(subject: Subject) -> None:
    """A retry finds the record that is there."""
    store = subject.store
    first = await store.enqueue(card(1))
    assert first.created
    assert first.record.state is RequestState.QUEUED
    assert first.record.card == card(1)
    assert [event.what for event in first.record.events] == ["accepted"]
    again = await store.enqueue(replace(card(1), tenant="someone else"))
    assert again == Enqueued(created=False, record=first.record)
    assert (await store.view()).classes[0].queued == 1


async def check_enqueue_refuses_another_incarnation(subject: Subject) -> None:
    """What was published before the store was emptied may have ended since; its message would tell."""
    store = subject.store
    former = await store.incarnation()
    await store.enqueue(card(1), None, former)
    store = await subject.emptied()
    try:
        await store.enqueue(card(1), GATEWAY, former)
        raise AssertionError("it was indexed")
    except StoreEmptiedError:
        assert await store.record(card(1).id) is None
    assert (await store.enqueue(card(1), GATEWAY, await store.incarnation())).created


async def check_record_equals_what_was_accepted(subject: Subject) -> None:
    """Cards come back whole, to the nanosecond; the prompt is not kept."""
    store = subject.store
    fields = {name: getattr(card(3), name) for name in card(3).__dataclass_fields__}
    request = Request(**fields | {"prompt_ids": tuple(range(13)), "prompt_tokens": 13})
    created = (await store.enqueue(request)).record
    assert created == await store.record(request.id)
    assert created.card == request.card()
    assert await store.record(RequestId("never heard of")) is None


async def check_records_filters_and_limits(subject: Subject) -> None:
    """Newest arrival first; state and model narrow, the limit cuts."""
    store = subject.store
    await alive(store, A)
    await enqueued(store, 1, 2, 3, 4)
    await store.enqueue(card(5, cls=BATCH))
    await leased(store, 2, A)
    epoch = await leased(store, 3, A)
    assert await store.park(card(3).id, epoch, "room")
    await store.cancel(card(4).id)
    newest_first = [card(n).id for n in (5, 4, 3, 2, 1)]
    assert await _ids(store, RequestFilter()) == newest_first
    assert await _ids(store, RequestFilter(limit=2)) == newest_first[:2]
    assert await _ids(store, RequestFilter(model="mistral")) == [card(5).id]
    assert await _ids(store, RequestFilter(state=RequestState.QUEUED)) == [card(5).id, card(1).id]
    assert await _ids(store, RequestFilter(state=RequestState.RUNNING)) == [card(2).id]
    assert await _ids(store, RequestFilter(state=RequestState.PARKED)) == [card(3).id]
    assert await _ids(store, RequestFilter(state=RequestState.ENDED)) == [card(4).id]


async def check_cancel_ends_a_waiting_request_at_once(subject: Subject) -> None:
    """It leaves the order; asking again changes nothing."""
    store = subject.store
    await enqueued(store, 1, 2)
    ended = await store.cancel(card(1).id)
    assert ended is not None
    assert (ended.state, ended.outcome) == (RequestState.ENDED, Outcome.CANCELLED)
    assert ended.ended_ns is not None
    assert (await store.view()).classes[0].queued == 1
    assert await store.cancel(card(1).id, Outcome.EXPIRED) == ended
    assert await store.cancel(RequestId("never heard of")) is None


async def check_cancel_asks_the_holder(subject: Subject) -> None:
    """A running or parked request stays until its holder ends it; the outcome asked first counts."""
    store = subject.store
    await alive(store, A)
    epoch = await leased(store, 1, A)
    async with listening(store.notices(A.instance)) as heard:
        asked = await store.cancel(card(1).id, Outcome.STOP)
        assert asked is not None and asked.cancel_requested
        assert asked.state is RequestState.RUNNING
        await hears(heard, [CancelAsked(id=card(1).id, outcome=Outcome.STOP)])
        await store.park(card(1).id, epoch, "room")
        again = await store.cancel(card(1).id, Outcome.CANCELLED)
        assert again is not None and again.state is RequestState.PARKED
        await hears(heard, [CancelAsked(id=card(1).id, outcome=Outcome.STOP)] * 2)


async def check_cancel_of_a_dead_holders_request_ends_it(subject: Subject) -> None:
    """Nobody is there to ask."""
    store = subject.store
    await alive(store, A)
    await leased(store, 1, A)
    await store.leave(A)
    ended = await store.cancel(card(1).id)
    assert ended is not None and ended.outcome is Outcome.CANCELLED
    assert ended.lease is None


async def check_withdraw_leaves_a_cancelled_request_and_nothing_that_waits(subject: Subject) -> None:
    """Whoever meets its message drops it; asking again changes nothing."""
    store = subject.store
    await alive(store, A)
    assert await store.withdraw(card(1))
    record = await store.record(card(1).id)
    assert record is not None
    assert (record.state, record.outcome) == (RequestState.ENDED, Outcome.CANCELLED)
    assert [event.what for event in record.events] == ["accepted", "ended"]
    assert sum(each.queued for each in (await store.view()).classes) == 0
    assert await store.lease(card(1), A, None) == Over(outcome=Outcome.CANCELLED)
    assert not await store.withdraw(card(1))
    assert await store.record(card(1).id) == record


async def check_withdraw_leaves_alone_what_another_try_brought(subject: Subject) -> None:
    """It may have been accepted."""
    store = subject.store
    await alive(store, A)
    await enqueued(store, 1)
    await leased(store, 2, A)
    for n, state in ((1, RequestState.QUEUED), (2, RequestState.RUNNING)):
        assert not await store.withdraw(card(n))
        record = await store.record(card(n).id)
        assert record is not None and record.state is state
        assert not record.cancel_requested


async def check_expire_ends_late_waiting_requests(subject: Subject) -> None:
    """Only those that wait and asked to be dropped; earliest due first, up to the limit."""
    store = subject.store
    await alive(store, A)
    await enqueued(store, 1)
    for n in (2, 3, 4, 5):
        await store.enqueue(card(n, drop=True))
    epoch = await leased(store, 3, A)
    due_ns = card(4, drop=True).drop_at_ns
    assert due_ns == ARRIVAL_NS + 4 + 10_000_000_000
    assert list(await store.expire(due_ns, limit=1)) == [card(2).id]
    assert list(await store.expire(due_ns)) == [card(4).id]
    record = await store.record(card(4).id)
    assert record is not None and (record.outcome, record.ended_ns) == (Outcome.EXPIRED, due_ns)
    assert await store.release(card(3).id, epoch, "drain")
    assert list(await store.expire(due_ns)) == [card(3).id]
    assert list(await store.expire(due_ns)) == []


async def check_a_first_token_in_time_is_no_miss(subject: Subject) -> None:
    """One whose objective is about it goes on, even if it has to wait again."""
    store = subject.store
    await alive(store, A)
    for n in (1, 2):
        await store.enqueue(replace(card(n, drop=True), slo=TokenSlo(ttft_ms=10_000)))
    epoch = await leased(store, 1, A)
    first = LogEntry(id=card(1).id, epoch=epoch, offset=0, token_ids=(7,))
    assert await store.append([first]) == [AppendResult.TAKEN]
    assert await store.release(card(1).id, epoch, "drain")
    assert list(await store.expire(ARRIVAL_NS + 60_000_000_000)) == [card(2).id]
    record = await store.record(card(1).id)
    assert record is not None and record.state is RequestState.QUEUED


async def check_results_max_drops_the_oldest_ended(subject: Subject) -> None:
    """The limit is 4 here; unfinished requests do not count and stay."""
    store = subject.store
    await enqueued(store, *range(1, 10))
    for n in (9, 3, 5, 4, 6, 7):
        await store.cancel(card(n).id)
    assert await _ids(store, RequestFilter()) == [card(n).id for n in (8, 7, 6, 5, 4, 2, 1)]
    assert await store.record(card(9).id) is None
    assert await store.read_output(card(3).id, 0) is None


async def check_events_tell_the_story(subject: Subject) -> None:
    """Each change, where it happened and why."""
    store = subject.store
    await alive(store, A)
    await enqueued(store, 1)
    epoch = await leased(store, 1, A)
    await store.park(card(1).id, epoch, "room")
    await store.resume(card(1).id, epoch)
    await store.release(card(1).id, epoch, "drain")
    epoch = await leased(store, 1, A)
    await store.append(
        [LogEntry(id=card(1).id, epoch=epoch, offset=0, outcome=Outcome.FAILED, detail="refused")]
    )
    record = await store.record(card(1).id)
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


async def check_events_are_bounded(subject: Subject) -> None:
    """The limit is 8 here; the oldest go."""
    store = subject.store
    await alive(store, A)
    epoch = await leased(store, 1, A)
    for n in range(6):
        await store.park(card(1).id, epoch, str(n))
        await store.resume(card(1).id, epoch)
    record = await store.record(card(1).id)
    assert record is not None
    assert [event.why for event in record.events] == ["2", "", "3", "", "4", "", "5", ""]


async def check_means_are_over_the_class(subject: Subject) -> None:
    """Prompts and limits of all accepted."""
    store = subject.store
    await alive(store, A)
    await enqueued(store, 1, 2, 3, 4, watcher=GATEWAY)
    for n, outcome in ((1, Outcome.STOP), (2, Outcome.LENGTH), (3, Outcome.FAILED)):
        epoch = await leased(store, n, A)
        await store.append(
            [LogEntry(id=card(n).id, epoch=epoch, offset=0, token_ids=(5,) * n * n, outcome=outcome)]
        )
    (view,) = (await store.view()).classes
    assert (view.cls, view.queued) == (CHAT, 1)
    assert (view.accepted, view.mean_prompt_tokens, view.var_prompt_tokens) == (4, 12.5, 1.25)
    assert (view.mean_max_tokens, view.var_max_tokens) == (100.0, 0.0)
    assert view.finished == 2


CHECKS = (
    check_enqueue_indexes_a_request_once,
    check_enqueue_refuses_another_incarnation,
    check_record_equals_what_was_accepted,
    check_records_filters_and_limits,
    check_cancel_ends_a_waiting_request_at_once,
    check_cancel_asks_the_holder,
    check_cancel_of_a_dead_holders_request_ends_it,
    check_withdraw_leaves_a_cancelled_request_and_nothing_that_waits,
    check_withdraw_leaves_alone_what_another_try_brought,
    check_expire_ends_late_waiting_requests,
    check_a_first_token_in_time_is_no_miss,
    check_results_max_drops_the_oldest_ended,
    check_events_tell_the_story,
    check_events_are_bounded,
    check_means_are_over_the_class,
)
