"""Contract of every store: one live holder per lease, fresh epochs, no request lost with a dead holder."""

from dataclasses import replace
from typing import Final

from contract.suites.store.values import (
    A_AGAIN,
    ARRIVAL_NS,
    CHAT,
    GATEWAY,
    LIMITS,
    OTHER_GATEWAY,
    A,
    B,
    Subject,
    alive,
    each_slice,
    enqueued,
    first_of,
    leased,
    listening,
    metadata,
    receives,
    status,
    until,
)
from qlm.domain.lease import Epoch
from qlm.domain.lease_answer import Granted, IdTaken, LeaseAnswer, LeaseHeldElsewhere, Over
from qlm.domain.notices import CancelAsked, LeaseHeld, QueueChanged
from qlm.domain.outcome import Outcome
from qlm.domain.output import AppendResult, LogEntry, OutputSlice
from qlm.domain.ports.store import Store
from qlm.domain.request import RequestState
from qlm.domain.slo import DeadlineSlo, TokenSlo

FAR_NS: Final = 4_000_000_000_000_000_001
"""An arrival before whose deadline the tests end."""

LONG_AGO_NS: Final = 1_000_000_000_000_000_001
"""An arrival whose deadline has passed by any clock of a test."""


def _output(answer: LeaseAnswer) -> tuple[int, ...]:
    assert isinstance(answer, Granted), answer
    return answer.output


async def _log(store: Store, n: int, epoch: Epoch, offset: int, *token_ids: int) -> AppendResult:
    entry = LogEntry(id=metadata(n).id, epoch=epoch, offset=offset, token_ids=token_ids)
    return (await store.append([entry]))[0]


async def test_a_waiting_request_is_granted(subject: Subject) -> None:
    """It leaves the arrival order and runs."""
    store = subject.store
    await alive(store, A)
    await enqueued(store, 1)
    answer = await store.lease(metadata(1), A, None)
    assert isinstance(answer, Granted)
    assert answer.lease.holder == A
    assert answer.lease.epoch.n == 1
    assert answer.lease.epoch.incarnation >= await store.incarnation()
    record = await store.record(metadata(1).id)
    assert record is not None
    assert (record.state, record.lease) == (RequestState.RUNNING, answer.lease)
    assert (await store.view()).classes == ()


async def test_a_lease_that_is_answered_at_once_is_as_any_other(subject: Subject) -> None:
    """A store that cannot, or would end the request, has done nothing; `lease` does it then."""
    store = subject.store
    await alive(store, A)
    await enqueued(store, 1, 2)
    answer = store.lease_now(metadata(1), A, None)
    if answer is None:
        record = await store.record(metadata(1).id)
        assert record is not None
        assert record.state is RequestState.QUEUED
        answer = await store.lease(metadata(1), A, None)
    assert isinstance(answer, Granted)
    assert answer.lease.epoch.n == 1
    assert answer.lease.epoch.incarnation >= await store.incarnation()
    assert await _log(store, 1, answer.lease.epoch, 0, 5) is AppendResult.TAKEN
    epoch = await leased(store, 2, A)
    await store.cancel(metadata(2).id)
    assert store.lease_now(metadata(2), A, None) is None
    assert await store.release(metadata(2).id, epoch, "why")
    assert await store.lease(metadata(2), A, None) == Over(outcome=Outcome.CANCELLED)


async def test_an_unknown_request_is_indexed_and_granted(subject: Subject) -> None:
    """An agent may be faster than the gateway, whose enqueue then finds it running."""
    store = subject.store
    await alive(store, A)
    await leased(store, 1, A)
    found = await store.enqueue(metadata(1), GATEWAY)
    assert not found.created
    assert found.record.state is RequestState.RUNNING


async def test_of_two_requests_with_one_id_the_first_is_kept(subject: Subject) -> None:
    """Two bodies with one Idempotency-Key: nobody leases, watches or moves the one that came second."""
    store, other = subject.store, replace(metadata(1), fingerprint="other body")
    await alive(store, A, B)
    await enqueued(store, 1)
    found = await store.enqueue(other, GATEWAY)
    assert (found.created, found.record.metadata) == (False, metadata(1))
    assert await store.lease(other, A, None) == IdTaken()
    assert await store.reregister(other, A, (8, 9)) == IdTaken()
    assert not await store.demote(replace(other, cls=CHAT.missed()), Epoch(1, 1), "late")
    await store.watch(other, GATEWAY)
    assert await store.unwatch(metadata(1).id, OTHER_GATEWAY) == 0
    epoch = await leased(store, 1, A)
    assert await store.lease(other, B, None) == IdTaken()
    assert await _log(store, 1, epoch, 0, 5) is AppendResult.TAKEN
    read = await store.read_output(metadata(1).id, 0)
    assert read == OutputSlice(metadata(1).id, 0, (5,), fingerprint="")
    assert await store.record(metadata(1).id) is not None


async def test_what_is_read_has_the_fingerprint_of_its_request(subject: Subject) -> None:
    """Whoever expects another body under this id can tell."""
    store, keyed = subject.store, replace(metadata(1), fingerprint="a body")
    await store.enqueue(keyed)
    assert await store.read_output(keyed.id, 0) == OutputSlice(keyed.id, 0, fingerprint="a body")
    await store.cancel(keyed.id)
    read = await store.read_output(keyed.id, 0)
    assert read is not None and (read.outcome, read.fingerprint) == (Outcome.CANCELLED, "a body")


async def test_a_live_holder_keeps_its_lease(subject: Subject) -> None:
    """Another agent gets the live holder as its answer; the holder itself may ask again."""
    store = subject.store
    await alive(store, A, B)
    former = await leased(store, 1, A)
    assert await store.lease(metadata(1), B, None) == LeaseHeldElsewhere(holder=A)
    assert await leased(store, 1, A) > former
    assert await _log(store, 1, former, 0, 5) is AppendResult.STALE


async def test_a_dead_holder_loses_its_lease(subject: Subject) -> None:
    """The new holder continues from the log; the former one is fenced."""
    store = subject.store
    await alive(store, A, B)
    former = await leased(store, 1, A)
    assert await _log(store, 1, former, 0, 5, 6) is AppendResult.TAKEN
    await store.leave(A)
    answer = await store.lease(metadata(1), B, None)
    assert _output(answer) == (5, 6)
    assert await _log(store, 1, former, 2, 7) is AppendResult.STALE
    assert not await store.release(metadata(1).id, former, "late")


async def test_expire_leases_releases_those_of_dead_holders(subject: Subject) -> None:
    """Their requests wait again, by arrival; a cancelled one ends. Live holders keep theirs."""
    store = subject.store
    await alive(store, A, B)
    epochs = {n: await leased(store, n, A) for n in (3, 1, 2)}
    await leased(store, 4, B)
    await store.park(metadata(1).id, epochs[1], "room")
    await _log(store, 1, epochs[1], 0, 5)
    await store.cancel(metadata(2).id)
    assert list(await store.expire_leases()) == []
    await alive(store, A_AGAIN, replaces=A.session)
    async with listening(store.wakeups()) as received:

        async def woken() -> bool:
            return "returned" in received

        assert list(await store.expire_leases()) == [metadata(n).id for n in (1, 2, 3)]
        await until(woken, "the controller to be woken")
    assert list(await store.expire_leases()) == []
    (view,) = (await store.view()).classes
    assert (view.queued, view.ungrouped_arrival_ns) == (2, ARRIVAL_NS + 1)
    record = await store.record(metadata(2).id)
    assert record is not None and record.outcome is Outcome.CANCELLED
    assert _output(await store.lease(metadata(1), A_AGAIN, None)) == (5,)
    assert await store.lease(metadata(4), A_AGAIN, None) == LeaseHeldElsewhere(holder=B)


async def test_a_silent_holder_is_dead(subject: Subject) -> None:
    """An instance without heartbeats is not listed and does not keep its leases."""
    store = subject.store
    await alive(store, B)
    await store.heartbeat(status(A), ttl_s=0.05)
    await leased(store, 1, A)

    async def only_b_lives() -> bool:
        return (await store.view()).instances == (status(B),)

    await until(only_b_lives, "the death of A")
    assert isinstance(await store.lease(metadata(1), B, None), Granted)


async def test_a_view_counts_leases_by_instance(subject: Subject) -> None:
    """This holds through new grants, releases, expired leases and ends."""
    store = subject.store
    await alive(store, A, B)
    await enqueued(store, 1, 2, 3, 4)
    assert (await store.view()).leased == {}
    epochs = {n: await leased(store, n, A if n < 4 else B) for n in (1, 2, 3, 4)}
    assert (await store.view()).leased == {A.instance: 3, B.instance: 1}
    epochs[1] = await leased(store, 1, A)
    assert (await store.view()).leased == {A.instance: 3, B.instance: 1}, "granted again to its holder"
    await store.park(metadata(2).id, epochs[2], "")
    assert await store.release(metadata(3).id, epochs[3], "")
    end = LogEntry(id=metadata(1).id, epoch=epochs[1], offset=0, token_ids=(7,), outcome=Outcome.STOP)
    assert await store.append([end]) == [AppendResult.TAKEN]
    assert (await store.view()).leased == {A.instance: 1, B.instance: 1}
    await store.leave(A)
    await leased(store, 2, B)
    assert (await store.view()).leased == {B.instance: 2}, "taken over from the dead"
    await store.leave(B)
    await store.expire_leases()
    assert (await store.view()).leased == {}


async def test_a_newer_session_voids_the_former(subject: Subject) -> None:
    """A restarted agent has no requests of its former session."""
    store = subject.store
    await alive(store, A, B)
    await leased(store, 1, A)
    await alive(store, A_AGAIN, replaces=A.session)
    assert (await store.view()).instances == (status(A_AGAIN), status(B))
    await store.leave(A)
    assert (await store.view()).instances == (status(A_AGAIN), status(B))
    assert isinstance(await store.lease(metadata(1), B, None), Granted)


async def test_an_ended_request_is_over(subject: Subject) -> None:
    """The message of an ended request can be dropped."""
    store = subject.store
    await alive(store, A)
    await enqueued(store, 1)
    await store.cancel(metadata(1).id)
    assert await store.lease(metadata(1), A, None) == Over(outcome=Outcome.CANCELLED)
    assert await store.reregister(metadata(1), A, (5,)) == Over(outcome=Outcome.CANCELLED)


async def test_release_puts_back_by_arrival(subject: Subject) -> None:
    """A returned request waits where it waited before."""
    store = subject.store
    await alive(store, A)
    await enqueued(store, 1, 2)
    epoch = await leased(store, 1, A)
    assert (await store.view()).classes[0].ungrouped_arrival_ns == ARRIVAL_NS + 2
    assert await store.release(metadata(1).id, epoch, "drain")
    (view,) = (await store.view()).classes
    assert (view.queued, view.ungrouped_arrival_ns) == (2, ARRIVAL_NS + 1)
    record = await store.record(metadata(1).id)
    assert record is not None and (record.state, record.lease) == (RequestState.QUEUED, None)
    assert await leased(store, 1, A) > epoch


async def test_a_demoted_request_waits_in_its_late_class(subject: Subject) -> None:
    """Its log and its arrival stay; a demotion under the epoch of a former lease does nothing."""
    store = subject.store
    await alive(store, A)
    await enqueued(store, 1, 2)
    epoch = await leased(store, 1, A)
    assert await _log(store, 1, epoch, 0, 5) is AppendResult.TAKEN
    late = replace(metadata(1), cls=CHAT.missed())
    assert not await store.demote(late, Epoch(epoch.incarnation, epoch.n + 1), "too late")
    assert await store.demote(late, epoch, "too late")
    views = {view.cls: view for view in (await store.view()).classes}
    assert {cls: view.queued for cls, view in views.items()} == {CHAT: 1, CHAT.missed(): 1}
    assert views[CHAT.missed()].ungrouped_arrival_ns == ARRIVAL_NS + 1
    assert views[CHAT.missed()].mean_prompt_tokens == metadata(1).prompt_tokens
    record = await store.record(metadata(1).id)
    assert record is not None and record.metadata.cls == CHAT.missed()
    assert (record.state, record.lease, record.output_tokens) == (RequestState.QUEUED, None, 1)
    assert (record.events[-1].what, record.events[-1].why) == ("returned", "too late")
    assert await leased(store, 1, A) > epoch


async def test_a_late_class_counts_the_requests_whose_first_token_was_in_time(subject: Subject) -> None:
    """They were evicted after it, and have met their objective."""
    store = subject.store
    await alive(store, A)
    stream, answer = TokenSlo(ttft_ms=1000), DeadlineSlo(deadline_ms=1000)
    for n, slo, arrival_ns in ((1, stream, FAR_NS), (2, stream, LONG_AGO_NS), (3, answer, FAR_NS)):
        request = replace(metadata(n), slo=slo, arrival_ns=arrival_ns)
        granted = await store.lease(request, A, None)
        assert isinstance(granted, Granted)
        assert await _log(store, n, granted.lease.epoch, 0, 5) is AppendResult.TAKEN
        assert await store.demote(replace(request, cls=CHAT.missed()), granted.lease.epoch, "evicted")
    (view,) = (await store.view()).classes
    assert (view.accepted, view.kept) == (3, 1)


async def test_a_demoted_request_waits_where_its_message_is(subject: Subject) -> None:
    """This holds also for a request whose lease was released, and for one unknown to the store."""
    store = subject.store
    await alive(store, A)
    epoch = await leased(store, 1, A)
    await store.leave(A)
    assert await store.expire_leases() == [metadata(1).id]
    for n in (1, 2):
        assert await store.demote(replace(metadata(n), cls=CHAT.missed()), epoch, "too late")
    (view,) = (await store.view()).classes
    assert (view.cls, view.queued) == (CHAT.missed(), 2)
    await store.cancel(metadata(2).id)
    assert not await store.demote(replace(metadata(2), cls=CHAT.missed()), epoch, "too late")


async def test_only_the_current_epoch_counts(subject: Subject) -> None:
    """Park, resume and release under another epoch return False and do nothing."""
    store = subject.store
    await alive(store, A)
    epoch = await leased(store, 1, A)
    for wrong in (Epoch(epoch.incarnation, 0), Epoch(epoch.incarnation, 2), Epoch(epoch.incarnation - 1, 1)):
        assert not await store.park(metadata(1).id, wrong, "")
        assert not await store.release(metadata(1).id, wrong, "")
    assert await store.park(metadata(1).id, epoch, "room")
    assert not await store.resume(metadata(1).id, Epoch(epoch.incarnation, 2))
    assert not await store.park(metadata(2).id, epoch, "unknown request")
    record = await store.record(metadata(1).id)
    assert record is not None and record.state is RequestState.PARKED
    assert await store.resume(metadata(1).id, epoch)
    assert await store.release(metadata(1).id, epoch, "drain")
    assert not await store.release(metadata(1).id, epoch, "again")


async def test_a_cancelled_request_ends_on_return(subject: Subject) -> None:
    """It does not run again after a release or the death of its holder."""
    store = subject.store
    await alive(store, A, B)
    epoch = await leased(store, 1, A)
    await leased(store, 2, A)
    await store.cancel(metadata(1).id, Outcome.EXPIRED)
    await store.cancel(metadata(2).id)
    assert await store.release(metadata(1).id, epoch, "drain")
    record = await store.record(metadata(1).id)
    assert record is not None and record.outcome is Outcome.EXPIRED
    assert await store.lease(metadata(2), B, None) == LeaseHeldElsewhere(holder=A)
    await store.leave(A)
    assert await store.lease(metadata(2), B, None) == Over(outcome=Outcome.CANCELLED)


async def test_a_request_that_was_dropped_has_no_earlier_epoch_again(subject: Subject) -> None:
    """What was generated under the lease of a dropped row is not taken for that of the next one."""
    store = subject.store
    await alive(store, A)
    former = await leased(store, 1, A)
    await store.cancel(metadata(1).id)
    ended = LogEntry(id=metadata(1).id, epoch=former, offset=0, outcome=Outcome.CANCELLED)
    assert await store.append([ended]) == [AppendResult.TAKEN]
    for n in range(2, 2 + LIMITS.results_max):
        await enqueued(store, n)
        await store.cancel(metadata(n).id)
    assert await store.record(metadata(1).id) is None
    epoch = await leased(store, 1, A)
    assert epoch > former
    assert await _log(store, 1, former, 0, 5) is AppendResult.UNKNOWN
    assert not await store.release(metadata(1).id, former, "late")
    assert await _log(store, 1, epoch, 0, 6) is AppendResult.TAKEN


async def test_an_emptied_store_is_a_larger_incarnation(subject: Subject) -> None:
    """Older epochs are rejected; a running request is registered again with its log and a larger epoch."""
    store = subject.store
    await alive(store, A)
    former = await leased(store, 1, A)
    incarnation = await store.incarnation()
    store = await subject.emptied()
    assert await store.incarnation() > incarnation
    assert await _log(store, 1, former, 0, 5) is AppendResult.UNKNOWN
    await alive(store, A)
    answer = await store.reregister(metadata(1), A, (5, 6))
    assert isinstance(answer, Granted) and answer.lease.epoch > former
    assert answer.output == (5, 6)
    assert await _log(store, 1, former, 2, 7) is AppendResult.UNKNOWN
    assert await _log(store, 1, answer.lease.epoch, 2, 7) is AppendResult.TAKEN
    assert await store.read_output(metadata(1).id, 0) == OutputSlice(
        id=metadata(1).id, offset=0, token_ids=(5, 6, 7)
    )


async def test_reregister_after_reindexing(subject: Subject) -> None:
    """If the controller has indexed the request first, the holder gets it back and watchers get the rest."""
    store = subject.store
    await alive(store, A)
    former = await leased(store, 1, A)
    store = await subject.emptied()
    await alive(store, A)
    await enqueued(store, 1, 2, watcher=GATEWAY)
    assert await _log(store, 1, former, 0, 5) is AppendResult.UNKNOWN
    async with listening(each_slice(store.outputs(GATEWAY))) as received:
        assert _output(await store.reregister(metadata(1), A, (5, 2**32 - 1))) == (5, 2**32 - 1)
        await receives(received, [OutputSlice(id=metadata(1).id, offset=0, token_ids=(5, 2**32 - 1))])
    (view,) = (await store.view()).classes
    assert (view.queued, view.ungrouped_arrival_ns) == (1, ARRIVAL_NS + 2)


async def test_reregister_keeps_the_longer_log(subject: Subject) -> None:
    """The log of the store or of the agent wins by length; a live holder keeps its lease."""
    store = subject.store
    await alive(store, A, B)
    epoch = await leased(store, 1, A)
    await _log(store, 1, epoch, 0, 5, 6)
    assert _output(await store.reregister(metadata(1), A, (5,))) == (5, 6)
    assert _output(await store.reregister(metadata(1), A, (5, 6, 7))) == (5, 6, 7)
    assert _output(await store.reregister(metadata(1), A, (5, 9, 7, 8))) == (5, 6, 7), "those of another"
    assert await store.reregister(metadata(1), B, (5, 6, 7, 8)) == LeaseHeldElsewhere(holder=A)
    record = await store.record(metadata(1).id)
    assert record is not None and record.output_tokens == 3
    assert record.lease is not None and record.lease.epoch.n == 4


async def test_notices_begin_with_standing_ones(subject: Subject) -> None:
    """An agent that (re)connects receives the cancellations and the drain that it may have missed.

    And its leases: the store may have come back with an earlier state.
    """
    store = subject.store
    await alive(store, A, B)
    first = await leased(store, 1, A)
    second = await leased(store, 2, A)
    await leased(store, 3, B)
    await store.cancel(metadata(2).id)
    await store.cancel(metadata(3).id)
    async with listening(store.notices(A.instance)) as received:
        leases = [LeaseHeld(id=metadata(1).id, epoch=first), LeaseHeld(id=metadata(2).id, epoch=second)]
        await receives(received, [*leases, CancelAsked(id=metadata(2).id, outcome=Outcome.CANCELLED)])
    assert await first_of(store.notices(A.instance)) == QueueChanged()
