"""Contract of every store: texts of an ended request are erased, and its record stays."""

from dataclasses import replace

from contract.suites.store.values import A, Subject, alive, enqueued, metadata
from qlm.domain.formats.extensions import LogExtensions, RequestExtensions
from qlm.domain.lease_answer import Granted, Over
from qlm.domain.outcome import Outcome
from qlm.domain.output import LogEntry, OutputSlice
from qlm.domain.request import RequestState
from qlm.domain.view import RequestFilter

STATES = RequestExtensions(response_state="of a client", render_state="of a client", choices=2, choice=0)


async def test_an_ended_request_loses_its_texts_and_keeps_its_record(subject: Subject) -> None:
    store = subject.store
    await alive(store, A)
    asked = replace(metadata(1), extensions=STATES, prompt_tail=(7, 8), fingerprint="of the body")
    await store.enqueue(asked)
    assert not await store.erase(asked)
    granted = await store.lease(asked, A, None)
    assert isinstance(granted, Granted)
    assert not await store.erase(asked)
    extensions = LogExtensions(render_state="of an answer", render_state_tokens=1, cached_tokens=3)
    end = LogEntry(
        id=asked.id,
        epoch=granted.lease.epoch,
        offset=0,
        token_ids=(5,),
        outcome=Outcome.STOP,
        extensions=extensions,
    )
    await store.append([end])
    before = await store.record(asked.id)
    assert before is not None and not before.erased
    assert not await store.erase(replace(asked, fingerprint="of another body"))
    assert await store.record(asked.id) == before

    assert await store.erase(before.metadata)
    record = await store.record(asked.id)
    assert record is not None
    assert (record.erased, record.state, record.outcome) == (True, RequestState.ENDED, Outcome.STOP)
    assert (record.output_tokens, record.ended_ns) == (0, before.ended_ns)
    assert record.metadata == before.metadata.without_texts()
    assert "of a client" not in repr(record)
    assert record.metadata.extensions.choices == 2
    lost = OutputSlice(
        *(asked.id, 0, (), Outcome.OUTPUT_LOST, "its client erased it"), fingerprint="of the body"
    )
    assert await store.read_output(asked.id, 0) == lost
    assert await store.read_output(asked.id, 1) == lost
    assert await store.erase(before.metadata)  # once more, without effect
    assert await store.record(asked.id) == record
    assert await store.records(RequestFilter()) == [record]


async def test_the_message_of_an_erased_request_is_not_served(subject: Subject) -> None:
    store = subject.store
    await alive(store, A)
    await enqueued(store, 1)
    record = await store.cancel(metadata(1).id)
    assert record is not None
    assert await store.erase(record.metadata)
    assert await store.lease(metadata(1), A, None) == Over(outcome=Outcome.CANCELLED)
    assert not (await store.enqueue(metadata(1))).created
    output = await store.read_output(metadata(1).id, 0)
    assert output is not None and output.outcome is Outcome.CANCELLED


async def test_a_detail_of_an_erased_request_stays_nowhere(subject: Subject) -> None:
    store = subject.store
    await alive(store, A)
    await enqueued(store, 1)
    granted = await store.lease(metadata(1), A, None)
    assert isinstance(granted, Granted)
    quoted = LogEntry(
        id=metadata(1).id,
        epoch=granted.lease.epoch,
        offset=0,
        token_ids=(),
        outcome=Outcome.REFUSED,
        detail="no grammar: what the client wrote",
    )
    await store.append([quoted])
    assert await store.erase(metadata(1))
    record = await store.record(metadata(1).id)
    assert record is not None and "the client wrote" not in repr(record)
    assert [(each.what, each.why) for each in record.events[-2:]] == [
        ("ended", Outcome.REFUSED.value),
        ("erased", ""),
    ]


async def test_an_unknown_request_is_not_erased(subject: Subject) -> None:
    assert not await subject.store.erase(metadata(9))
    assert await subject.store.record(metadata(9).id) is None
