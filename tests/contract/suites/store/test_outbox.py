"""Contract of every store: events of ends are kept until they are settled."""

from dataclasses import replace

from contract.suites.store.values import LIMITS, A, Subject, alive, metadata
from qlm.domain.formats.extensions import RequestExtensions
from qlm.domain.lease_answer import Granted
from qlm.domain.outcome import Outcome
from qlm.domain.output import LogEntry
from qlm.domain.ports.outbox import EndEvent, OutboxState
from qlm.domain.ports.store import Store
from qlm.domain.request import RequestMetadata

LONG_S = 3600.0
NOTIFY = RequestExtensions(notify=True)
BATCH = EndEvent(subject="batch_1", ended_as="completed", tenant="größe", at_ns=1_700_000_000_000_000_001)


def _asking(n: int) -> RequestMetadata:
    return replace(metadata(n), extensions=NOTIFY)


async def _end(store: Store, asked: RequestMetadata, outcome: Outcome) -> None:
    granted = await store.lease(asked, A, None)
    assert isinstance(granted, Granted)
    end = LogEntry(id=asked.id, epoch=granted.lease.epoch, offset=0, token_ids=(5,), outcome=outcome)
    await store.append([end])


async def test_an_end_is_kept_if_its_request_asks_for_that(subject: Subject) -> None:
    store = subject.store
    await alive(store, A)
    await _end(store, metadata(1), Outcome.STOP)
    await _end(store, replace(metadata(2), extensions=RequestExtensions(notify=False)), Outcome.STOP)
    assert await store.claim_ends(9, LONG_S) == []
    await _end(store, _asking(3), Outcome.LENGTH)
    await store.enqueue(_asking(4))
    await store.cancel(_asking(4).id)
    claimed = await store.claim_ends(9, LONG_S)
    found = {each.subject: (each.ended_as, each.tenant, each.attempts, each.done) for each in claimed}
    assert found == {"r0003": ("length", "tenant", 1, ()), "r0004": ("cancelled", "tenant", 1, ())}
    for each in claimed:
        record = await store.record(metadata(int(each.subject[1:])).id)
        assert record is not None and record.ended_ns == each.at_ns


async def test_texts_that_look_like_the_extension_add_nothing(subject: Subject) -> None:
    store = subject.store
    shown = replace(
        metadata(1), tenant='"notify":true', extensions=RequestExtensions(task_id='"notify":true')
    )
    await store.enqueue(shown)
    await store.cancel(shown.id)
    assert await store.outbox_state() == OutboxState(0, 0)


async def test_a_request_that_was_not_accepted_has_no_event(subject: Subject) -> None:
    assert await subject.store.withdraw(_asking(1))
    assert await subject.store.outbox_state() == OutboxState(0, 0)


async def test_an_erased_request_has_its_event_all_the_same(subject: Subject) -> None:
    store = subject.store
    await store.enqueue(_asking(1))
    await store.cancel(_asking(1).id)
    assert await store.erase(_asking(1))
    assert [each.subject for each in await store.claim_ends(9, LONG_S)] == ["r0001"]


async def test_a_claim_keeps_others_from_an_event_until_it_lapses(subject: Subject) -> None:
    store = subject.store
    await store.add_end(BATCH)
    await store.add_end(replace(BATCH, ended_as="failed"))  # the same subject: no second one
    (first,) = await store.claim_ends(9, 0.0)
    assert first == replace(BATCH, attempts=1)
    (second,) = await store.claim_ends(9, LONG_S)  # the first claim has lapsed
    assert second.attempts == 2
    assert await store.claim_ends(9, LONG_S) == []
    assert not await store.settle_end(first, None)
    assert await store.outbox_state() == OutboxState(1, 0)
    assert await store.settle_end(second, None)
    assert not await store.settle_end(second, None)
    assert await store.outbox_state() == OutboxState(0, 0)


async def test_an_event_that_was_settled_for_some_is_due_again(subject: Subject) -> None:
    store = subject.store
    await store.add_end(BATCH)
    (claimed,) = await store.claim_ends(9, LONG_S)
    assert claimed.failures == 0
    assert await store.settle_end(replace(claimed, done=("one", "zwö"), failures=1), 0)
    (again,) = await store.claim_ends(9, LONG_S)
    assert (again.done, again.attempts, again.failures) == (("one", "zwö"), 2, 1)
    assert await store.settle_end(again, again.at_ns * 2)
    assert await store.claim_ends(9, LONG_S) == []


async def test_how_an_event_ended_may_be_settled_anew_within_its_claim(subject: Subject) -> None:
    store = subject.store
    await store.add_end(BATCH)
    (claimed,) = await store.claim_ends(9, LONG_S)
    changed = replace(claimed, ended_as="expired")
    assert await store.settle_end(changed, claimed.at_ns * 2)
    assert await store.claim_ends(9, LONG_S) == []
    assert await store.settle_end(changed, 0)
    assert await store.settle_end(changed, 0)
    assert await store.claim_ends(9, LONG_S) == [replace(changed, attempts=2)]


async def test_the_outbox_is_bounded_and_claims_are_too(subject: Subject) -> None:
    store = subject.store
    for n in range(LIMITS.events_waiting_max + 2):
        await store.add_end(replace(BATCH, subject=f"batch_{n}"))
    assert await store.outbox_state() == OutboxState(LIMITS.events_waiting_max, 2)
    some = await store.claim_ends(2, LONG_S)
    rest = await store.claim_ends(9, LONG_S)
    assert [each.subject for each in (*some, *rest)] == ["batch_0", "batch_1", "batch_2"]
