"""State of the embedded store that survives a crash, and what is refused at a start."""

from dataclasses import replace

import pytest

from contract.suites.store.values import (
    A,
    alive,
    enqueued,
    leased,
    metadata,
)
from qlm.domain.attainment import recorded_attainment
from qlm.domain.errors import UndecodableDataError
from qlm.domain.formats.extensions import LogExtensions
from qlm.domain.lease_answer import Granted, Over
from qlm.domain.length_histogram import length_bin
from qlm.domain.outcome import Outcome
from qlm.domain.output import AppendResult, LogEntry, OutputSlice
from qlm.domain.ports.published import PublishedKind
from qlm.domain.request import RequestRecord, RequestState
from qlm.domain.slo import ReadingSlo
from qlm.domain.view import RequestFilter
from qlm.store.core.effects import Logged
from qlm.store.core.limits import StoreLimits
from qlm.store.embedded.journal_codec import Ended, decode_ended, encode_ended, encode_log, log_key
from qlm.store.embedded.store import EmbeddedStore
from support.dict_journal import DictJournal, SystemClock, ended_request, opened, put_tokens


async def test_an_ended_request_comes_back_whole(journal: DictJournal) -> None:
    store = await opened(journal)
    record = await ended_request(store, 1)
    means = (await store.view()).classes
    store = await opened(journal)
    assert await store.record(metadata(1).id) == record
    whole = OutputSlice(id=metadata(1).id, offset=0, token_ids=(5, 6, 7), outcome=Outcome.STOP, detail="why")
    assert await store.read_output(metadata(1).id, 0) == whole
    again = await store.enqueue(metadata(1))
    assert (again.created, again.record) == (False, record)
    assert await store.lease(metadata(1), A, None) == Over(outcome=Outcome.STOP)
    await enqueued(store, 2)
    (view,) = (await store.view()).classes
    assert (view.mean_output_tokens, view.finished) == (3.0, 1)
    assert view.lengths.ended[length_bin(3)] == 1
    assert (view.mean_prompt_tokens, view.mean_max_tokens) == (11.5, 100.0)
    assert means == ()


async def test_what_was_erased_stays_erased(journal: DictJournal) -> None:
    store = await opened(journal)
    before = await ended_request(store, 1)
    assert await store.erase(before.metadata)
    record, output = await store.record(metadata(1).id), await store.read_output(metadata(1).id, 0)
    store = await opened(journal)
    assert await store.record(metadata(1).id) == record
    assert record is not None and record.erased
    assert await store.read_output(metadata(1).id, 0) == output
    await enqueued(store, 2)
    (view,) = (await store.view()).classes
    assert view.finished == 0, "the length of its answer is no longer known"


async def test_extensions_written_before_the_first_token_come_back_with_the_log(
    journal: DictJournal,
) -> None:
    extensions = LogExtensions(render_state="x", render_state_tokens=0)
    store = await opened(journal)
    await alive(store, A)
    epoch = await leased(store, 1, A)
    await store.append([LogEntry(id=metadata(1).id, epoch=epoch, offset=0, extensions=extensions)])
    await put_tokens(store, 1, epoch, 0, 5)
    store = await opened(journal)
    await enqueued(store, 1)
    whole = OutputSlice(id=metadata(1).id, offset=0, token_ids=(5,), extensions=extensions)
    assert await store.read_output(metadata(1).id, 0) == whole


async def test_the_log_of_an_unfinished_request_waits_for_its_message(journal: DictJournal) -> None:
    store = await opened(journal)
    await alive(store, A)
    former = await leased(store, 1, A)
    for offset in range(3):
        assert await put_tokens(store, 1, former, offset, offset) is AppendResult.TAKEN
    before = await store.record(metadata(1).id)
    store = await opened(journal)
    await alive(store, A)
    assert await store.record(metadata(1).id) is None
    assert await put_tokens(store, 1, former, 3, 9) is AppendResult.UNKNOWN
    found = await store.enqueue(metadata(1))
    assert found.created
    assert (found.record.state, found.record.output_tokens) == (RequestState.QUEUED, 3)
    assert before is not None and found.record.first_token_ns == before.first_token_ns
    answer = await store.lease(metadata(1), A, None)
    assert isinstance(answer, Granted) and answer.output == (0, 1, 2)
    assert answer.lease.epoch > former
    assert await put_tokens(store, 1, former, 3, 9) is AppendResult.UNKNOWN
    assert await put_tokens(store, 1, answer.lease.epoch, 3, 3) is AppendResult.TAKEN
    store = await opened(journal)
    answer = await store.lease(metadata(1), A, None)
    assert isinstance(answer, Granted) and answer.output == (0, 1, 2, 3)


async def test_a_first_token_that_was_late_is_late_after_a_restart(journal: DictJournal) -> None:
    """No later token gives the wait back to the reader."""
    reading = replace(metadata(1), slo=ReadingSlo(ttft_ms=1000.0, tokens_per_s=4.8))
    store = await opened(journal)
    await alive(store, A)
    granted = await store.lease(reading, A, None)
    assert isinstance(granted, Granted)
    assert await put_tokens(store, 1, granted.lease.epoch, 0, 5, 6) is AppendResult.TAKEN
    before = await store.record(reading.id)
    store = await opened(journal)
    found = await store.enqueue(reading)
    assert before is not None and before.reader_late_s is not None and before.reader_late_s > 1
    assert found.record.reader_late_s == before.reader_late_s
    assert recorded_attainment(found.record, SystemClock().now_ns()).met is False


async def test_an_ended_request_leaves_one_entry_in_the_journal(journal: DictJournal) -> None:
    store = await opened(journal)
    await ended_request(store, 1)
    store = await opened(journal)
    epoch = await leased(store, 2, A)
    await put_tokens(store, 2, epoch, 0, 5)
    store = await opened(journal)
    await enqueued(store, 2)
    await store.cancel(metadata(2).id)
    assert sorted(journal.entries) == ["ended/r0001", "ended/r0002", "incarnation"]


async def test_ends_are_durable_and_appends_need_not_be(journal: DictJournal) -> None:
    store = await opened(journal)
    epoch = await leased(store, 1, A)
    at_start = journal.durable_writes
    await put_tokens(store, 1, epoch, 0, 5)
    assert journal.durable_writes == at_start
    await put_tokens(store, 1, epoch, 1, end=Outcome.STOP)
    assert journal.durable_writes == at_start + 1


async def test_each_opening_is_a_larger_incarnation_even_if_the_clock_went_back(journal: DictJournal) -> None:
    class Stopped:
        def now_ns(self) -> int:
            return 7

    seen = [await (await EmbeddedStore.open(Stopped(), journal)).incarnation() for _ in range(3)]
    assert seen == [7, 8, 9]


async def test_results_beyond_the_limits_leave_the_journal_too(journal: DictJournal) -> None:
    limits = StoreLimits(results_max=2)
    store = await opened(journal, limits)
    for n in (3, 1, 2):
        await ended_request(store, n)
    store = await opened(journal, limits)
    await ended_request(store, 4)
    await enqueued(store, 5)
    ids = [record.metadata.id for record in await store.records(RequestFilter())]
    assert ids == [metadata(n).id for n in (5, 4, 2)]
    assert sorted(journal.entries) == ["ended/r0002", "ended/r0004", "incarnation"]


async def test_the_history_comes_back_and_waits_for_no_disk(journal: DictJournal) -> None:
    store = await opened(journal)
    journal.open.clear()
    await store.publish(PublishedKind.HISTORY, b"first")
    await store.publish(PublishedKind.HISTORY, b"second")
    assert await store.published(PublishedKind.HISTORY) == b"second"
    journal.open.set()
    await store.close()
    assert await (await opened(journal)).published(PublishedKind.HISTORY) == b"second"


@pytest.mark.parametrize("key", ["log/0/r1", "ended/r1", "extensions/r1"])
async def test_a_journal_of_another_kind_is_refused(journal: DictJournal, key: str) -> None:
    journal.entries[key] = b"abc"
    with pytest.raises(UndecodableDataError, match=key):
        await opened(journal)


@pytest.mark.parametrize("text", [b"[]", b'"x"', b"1", b"null", b"true"])
async def test_an_end_that_is_no_json_object_is_refused(journal: DictJournal, text: bytes) -> None:
    journal.entries["ended/r1"] = len(text).to_bytes(4, "little") + text
    with pytest.raises(UndecodableDataError, match=r"'ended/r1' cannot be read: .*no JSON object"):
        await opened(journal)


async def test_an_end_of_a_later_version_is_left_out_and_logged(
    journal: DictJournal, caplog: pytest.LogCaptureFixture
) -> None:
    store = await opened(journal)
    for n in (1, 2):
        await ended_request(store, n)
    key = f"ended/{metadata(1).id}"
    later = journal.entries[key] = journal.entries[key].replace(b'"stop"', b'"halt"', 1)
    store = await opened(journal)
    assert [each.metadata.id for each in await store.records(RequestFilter())] == [metadata(2).id]
    assert f"the end of {metadata(1).id} is not read: " in caplog.text
    assert journal.entries[key] == later, "the later version still has it"


def test_an_outcome_and_parameters_of_a_later_version_beside_known_ones_are_left_out() -> None:
    record = RequestRecord(
        metadata=metadata(1), state=RequestState.ENDED, outcome=Outcome.REFUSED, ended_ns=7, output_tokens=0
    )
    value = encode_ended(Ended(record, "why", ()))
    later = value[4:].replace(b'"refused_by_engine"', b'"refused_for_later"')
    later = later[:-1] + b',"later_sampling":{"later":1}}'
    read = decode_ended("ended/r1", len(later).to_bytes(4, "little") + later)
    assert read is not None
    assert read.record == replace(record, outcome=Outcome.FAILED)


async def test_a_journal_with_a_hole_is_refused(journal: DictJournal) -> None:
    part = Logged(metadata(1).id, 1, (6,), 7)
    journal.entries[log_key(part)] = encode_log(part)
    with pytest.raises(UndecodableDataError, match="lacks tokens 0 to 1"):
        await opened(journal)


async def test_an_answer_of_which_tokens_are_missing_in_the_journal_is_lost(journal: DictJournal) -> None:
    store = await EmbeddedStore.open(SystemClock(), journal)
    await alive(store, A)
    epoch = await leased(store, 1, A)
    end = LogEntry(id=metadata(1).id, epoch=epoch, offset=0, token_ids=(1, 2, 3), outcome=Outcome.STOP)
    await store.append([end])
    await store.close()
    key = f"ended/{metadata(1).id}"
    journal.entries[key] = journal.entries[key][:-4]
    again = await EmbeddedStore.open(SystemClock(), journal)
    read, record = await again.read_output(metadata(1).id, 0), await again.record(metadata(1).id)
    assert read is not None and record is not None
    assert (read.token_ids, read.outcome) == ((), Outcome.OUTPUT_LOST)
    assert read.detail == "its output log has 2 tokens, 3 were recorded"
    assert (record.outcome, record.output_tokens) == (Outcome.OUTPUT_LOST, 0)
    await again.close()


async def test_clusters_survive_a_kill_and_are_written_when_they_change(journal: DictJournal) -> None:
    store = await opened(journal)
    assert await store.published(PublishedKind.CLUSTERS) is None
    await store.publish(PublishedKind.CLUSTERS, b"first")
    await store.publish(PublishedKind.CLUSTERS, b"second")
    writes = journal.writes
    await store.publish(PublishedKind.CLUSTERS, b"second")
    assert journal.writes == writes
    assert await (await opened(journal)).published(PublishedKind.CLUSTERS) == b"second"
