"""Contract of every store: media of a prompt are kept until the end of its request."""

from contract.suites.store.values import A, Subject, alive, metadata
from qlm.domain.ids import RequestId
from qlm.domain.lease_answer import Granted
from qlm.domain.outcome import Outcome
from qlm.domain.output import LogEntry

DATA = b'{"parts": "\xc3\xa9"}' * 10_000


async def test_media_are_read_as_they_were_put(subject: Subject) -> None:
    store, id = subject.store, metadata(1).id
    assert await store.media(id) is None
    assert await store.put_media(id, DATA)
    assert await store.media(id) == DATA
    assert await store.media(RequestId("another")) is None


async def test_media_of_an_id_are_put_once(subject: Subject) -> None:
    store, id = subject.store, metadata(1).id
    assert await store.put_media(id, DATA)
    assert await store.put_media(id, DATA)
    assert not await store.put_media(id, b"others")
    assert await store.media(id) == DATA


async def test_dropped_media_make_place_for_others(subject: Subject) -> None:
    store, id = subject.store, metadata(1).id
    await store.drop_media(id)
    assert await store.put_media(id, DATA)
    await store.drop_media(id)
    assert await store.media(id) is None
    assert await store.put_media(id, b"others")
    assert await store.media(id) == b"others"


async def test_the_end_of_a_request_drops_its_media_and_no_others(subject: Subject) -> None:
    store, other = subject.store, metadata(9)
    await alive(store, A)
    assert await store.put_media(other.id, DATA)
    answered, cancelled, expired, withdrawn = (metadata(number) for number in range(1, 5))
    for each in (answered, cancelled, expired):
        await store.enqueue(each)
    for each in (answered, cancelled, expired, withdrawn):
        assert await store.put_media(each.id, DATA)
    granted = await store.lease(answered, A, None)
    assert isinstance(granted, Granted)
    epoch = granted.lease.epoch
    await store.append(
        [LogEntry(id=answered.id, epoch=epoch, offset=0, token_ids=(5,), outcome=Outcome.STOP)]
    )
    await store.cancel(cancelled.id)
    await store.end_waiting([expired.id], Outcome.EXPIRED, "late")
    await store.withdraw(withdrawn)
    for each in (answered, cancelled, expired, withdrawn):
        assert await store.media(each.id) is None, each.id
    assert await store.media(other.id) == DATA


async def test_media_outlive_a_lease(subject: Subject) -> None:
    store, asked = subject.store, metadata(1)
    await alive(store, A)
    assert await store.put_media(asked.id, DATA)
    await store.enqueue(asked)
    granted = await store.lease(asked, A, None)
    assert isinstance(granted, Granted)
    await store.release(asked.id, granted.lease.epoch, "evicted")
    assert await store.media(asked.id) == DATA
