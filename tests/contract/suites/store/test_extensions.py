"""Contract of every store: extensions of requests, logs and classes are kept, those of later versions too."""

from dataclasses import replace

from contract.suites.store.values import GATEWAY, A, B, Subject, alive, each_slice, listening, metadata, until
from qlm.domain.formats.extensions import (
    NO_CLASS_EXTENSIONS,
    NO_LOG_EXTENSIONS,
    ClassExtensions,
    LogExtensions,
    RequestExtensions,
    extensions_from_plain,
    extensions_to_plain,
    only_logprobs,
)
from qlm.domain.lease import Epoch, Holder
from qlm.domain.lease_answer import Granted
from qlm.domain.outcome import Outcome
from qlm.domain.output import AppendResult, LogEntry
from qlm.domain.ports.store import Store
from qlm.domain.request import RequestMetadata, RequestState
from support.extensions import CLASS_PLAIN, LATER, OF_CLASS, OF_LOG, OF_REQUEST

EXTENDED = replace(metadata(1), extensions=OF_REQUEST)


async def _lease(store: Store, request: RequestMetadata, holder: Holder) -> Epoch:
    answer = await store.lease(request, holder, None)
    assert isinstance(answer, Granted), answer
    return answer.lease.epoch


async def _append(
    store: Store,
    epoch: Epoch,
    offset: int,
    *token_ids: int,
    extensions: LogExtensions = NO_LOG_EXTENSIONS,
    end: Outcome | None = None,
) -> None:
    entry = LogEntry(
        id=EXTENDED.id, epoch=epoch, offset=offset, token_ids=token_ids, outcome=end, extensions=extensions
    )
    assert await store.append([entry]) == [AppendResult.TAKEN]


async def _request_extensions(store: Store) -> RequestExtensions:
    record = await store.record(EXTENDED.id)
    assert record is not None
    return record.metadata.extensions


async def _log_extensions(store: Store) -> LogExtensions:
    output = await store.read_output(EXTENDED.id, 0)
    assert output is not None
    return output.extensions


async def _class_extensions(store: Store) -> ClassExtensions:
    (view,) = (await store.view()).classes
    return view.extensions


async def test_a_request_keeps_its_extensions_until_its_end(subject: Subject) -> None:
    """Through lease, preemption, resume, return, demotion and its last entry."""
    store = subject.store
    await alive(store, A, B)
    created = (await store.enqueue(EXTENDED)).record
    assert created.metadata == EXTENDED
    assert (await store.enqueue(metadata(1))).record.metadata == EXTENDED, "a retry without them"
    epoch = await _lease(store, EXTENDED, A)
    assert await store.park(EXTENDED.id, epoch, "room")
    assert await _request_extensions(store) == OF_REQUEST
    assert await store.resume(EXTENDED.id, epoch)
    assert await store.release(EXTENDED.id, epoch, "drain")
    assert await _request_extensions(store) == OF_REQUEST
    epoch = await _lease(store, EXTENDED, B)
    late = replace(EXTENDED, cls=EXTENDED.cls.missed())
    assert await store.demote(late, epoch, "late")
    assert await _request_extensions(store) == OF_REQUEST
    epoch = await _lease(store, late, A)
    await _append(store, epoch, 0, 5, end=Outcome.STOP)
    record = await store.record(EXTENDED.id)
    assert record is not None
    assert (record.state, record.metadata) == (RequestState.ENDED, late)


async def test_a_request_registered_again_has_its_extensions(subject: Subject) -> None:
    """The agent that runs it tells them to a store that was emptied."""
    await alive(subject.store, A)
    await _lease(subject.store, EXTENDED, A)
    store = await subject.emptied()
    await alive(store, A)
    await store.reregister(EXTENDED, A, (5, 6))
    assert await _request_extensions(store) == OF_REQUEST


async def test_a_log_keeps_its_extensions_when_another_continues_it(subject: Subject) -> None:
    """Entries without extensions leave them, and so do a return and another holder."""
    store = subject.store
    await alive(store, A, B)
    await store.enqueue(EXTENDED)
    epoch = await _lease(store, EXTENDED, A)
    await _append(store, epoch, 0, 5)
    assert await _log_extensions(store) == NO_LOG_EXTENSIONS
    await _append(store, epoch, 1, 6, extensions=OF_LOG)
    await _append(store, epoch, 2, 7)
    assert await _log_extensions(store) == OF_LOG
    await store.release(EXTENDED.id, epoch, "drain")
    epoch = await _lease(store, EXTENDED, B)
    assert await _log_extensions(store) == OF_LOG
    await _append(store, epoch, 3, 8, end=Outcome.STOP)
    output = await store.read_output(EXTENDED.id, 2)
    assert output is not None
    assert (output.token_ids, output.extensions) == ((7, 8), OF_LOG)


async def test_a_lease_tells_how_often_the_request_was_preempted_and_lost_its_engine(
    subject: Subject,
) -> None:
    """By whom ever, over returns and demotions."""
    store = subject.store
    await alive(store, A, B)
    await store.enqueue(EXTENDED)
    granted = await store.lease(EXTENDED, A, None)
    assert isinstance(granted, Granted) and (granted.preemptions, granted.engine_losses) == (0, 0)
    await _append(store, granted.lease.epoch, 0, extensions=LogExtensions(preemptions=1))
    await store.release(EXTENDED.id, granted.lease.epoch, "evicted")
    again = await store.lease(EXTENDED, B, None)
    assert isinstance(again, Granted) and (again.preemptions, again.engine_losses) == (1, 0)
    await _append(store, again.lease.epoch, 0, 5, extensions=LogExtensions(preemptions=2))
    await _append(store, again.lease.epoch, 1, extensions=LogExtensions(engine_losses=3))
    late = replace(EXTENDED, cls=EXTENDED.cls.missed())
    assert await store.demote(late, again.lease.epoch, "late")
    last = await store.lease(late, A, None)
    assert isinstance(last, Granted) and last.output == (5,)
    assert (last.preemptions, last.engine_losses) == (2, 3)


async def test_each_field_of_a_log_is_that_of_the_last_entry_with_it(subject: Subject) -> None:
    """A field of a later version stays when this one writes others."""
    store = subject.store
    await alive(store, A)
    await store.enqueue(EXTENDED)
    epoch = await _lease(store, EXTENDED, A)
    await _append(store, epoch, 0, 5, extensions=OF_LOG)
    latter = LogExtensions(render_state="é", render_state_tokens=2)
    await _append(store, epoch, 1, 6, extensions=latter)
    kept = extensions_to_plain(OF_LOG) | extensions_to_plain(latter)
    assert extensions_to_plain(await _log_extensions(store)) == kept | LATER


async def test_the_end_is_announced_with_the_extensions_of_its_entry(subject: Subject) -> None:
    """Gateways need them for the answer; other entries are announced with log probabilities at most."""
    store = subject.store
    await alive(store, A)
    await store.enqueue(EXTENDED, GATEWAY)
    epoch = await _lease(store, EXTENDED, A)
    last = LogExtensions(cached_tokens=7)
    async with listening(each_slice(store.outputs(GATEWAY))) as received:
        await _append(store, epoch, 0, 5, extensions=OF_LOG)
        await _append(store, epoch, 1, 6, extensions=last, end=Outcome.STOP)

        async def both_heard() -> bool:
            return len(received) >= 2

        await until(both_heard, "the end")
    assert [part.extensions for part in received if part is not None] == [only_logprobs(OF_LOG), last]
    assert (await _log_extensions(store)).cached_tokens == 7


async def test_the_end_of_a_cancelled_request_is_announced_with_its_extensions_unchanged(
    subject: Subject,
) -> None:
    """The detail becomes that of the cancel; fields of a later version keep large numbers and empty lists."""
    store = subject.store
    later = {"a_later_field": [2**53 + 1, [], {}, 0.1 + 0.2], "another": "/é"}
    extensions = extensions_from_plain(LogExtensions, later)
    await alive(store, A)
    await store.enqueue(EXTENDED, GATEWAY)
    epoch = await _lease(store, EXTENDED, A)
    await store.cancel(EXTENDED.id, Outcome.CANCELLED, "by an operator / ü")
    async with listening(each_slice(store.outputs(GATEWAY))) as received:
        await _append(store, epoch, 0, 4_294_967_295, extensions=extensions, end=Outcome.CANCELLED)

        async def heard() -> bool:
            return bool(received)

        await until(heard, "the end")
    (part,) = received
    assert part is not None
    assert (part.detail, part.token_ids) == ("by an operator / ü", (4_294_967_295,))
    assert extensions_to_plain(part.extensions) == later


async def test_a_refused_entry_changes_no_extensions(subject: Subject) -> None:
    store = subject.store
    await alive(store, A)
    await store.enqueue(EXTENDED)
    epoch = await _lease(store, EXTENDED, A)
    entry = LogEntry(id=EXTENDED.id, epoch=epoch, offset=9, token_ids=(5,), extensions=OF_LOG)
    assert await store.append([entry]) == [AppendResult.GAP]
    assert await _log_extensions(store) == NO_LOG_EXTENSIONS


async def test_a_class_has_the_extensions_of_its_requests(subject: Subject) -> None:
    """The newest request with a field decides; one without leaves it, and so does another class."""
    store = subject.store
    await store.enqueue(metadata(1))
    assert await _class_extensions(store) == NO_CLASS_EXTENSIONS
    await store.enqueue(replace(metadata(2), extensions=OF_REQUEST))
    await store.enqueue(metadata(3))
    assert await _class_extensions(store) == OF_CLASS
    newer = RequestExtensions(cls=ClassExtensions(deadline_ms=7.0, p_met=0.5))
    await store.enqueue(replace(metadata(4), extensions=newer))
    expected = CLASS_PLAIN | LATER | {"deadline_ms": 7.0, "p_met": 0.5}
    assert await _class_extensions(store) == extensions_from_plain(ClassExtensions, expected)


async def test_the_log_probabilities_of_all_entries_add_up(subject: Subject) -> None:
    """A watcher gets those of each entry with its tokens; a reader gets all."""
    store = subject.store
    await alive(store, A)
    await store.enqueue(EXTENDED, GATEWAY)
    epoch = await _lease(store, EXTENDED, A)
    pieces = ((0, "AAAA"), (1, "BBBB"), (2, "CCCC"))
    async with listening(each_slice(store.outputs(GATEWAY))) as received:
        for at, piece in enumerate(pieces):
            end = Outcome.LENGTH if at == 2 else None
            await _append(store, epoch, at, 5 + at, extensions=LogExtensions(logprobs_at=(piece,)), end=end)

        async def all_heard() -> bool:
            return len(received) >= len(pieces)

        await until(all_heard, "the end")
    announced = [part.extensions.logprobs_at for part in received if part is not None]
    assert announced == [(piece,) for piece in pieces]
    assert (await _log_extensions(store)).logprobs_at == pieces
