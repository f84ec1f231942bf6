"""The agent, event by event: an event in, the actions out."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.agents.core.agent import Agent
from qlm.agents.core.events import (
    Appended,
    EngineProbed,
    GenerationEnded,
    Progress,
    Pulled,
    QueueRead,
    Tick,
)
from qlm.agents.core.state import AgentSettings
from qlm.domain.actions import (
    Abort,
    Ack,
    AcquireLease,
    Append,
    Drained,
    ProbeEngine,
    Pull,
    PulledMessage,
    RenewDelivery,
    ReportParked,
    ReportResumed,
    Return,
    SetTimer,
    Submit,
    SwapModel,
)
from qlm.domain.ids import GroupId, TokenIds
from qlm.domain.notices import CancelAsked, DrainAsked
from qlm.domain.outcome import Outcome
from qlm.domain.output import AppendResult
from qlm.domain.slo import OnMiss
from qlm.domain.virtual_queue import VirtualQueue
from support.agent_bench import HOLDER, Bench, M, N, S, delivery_of, group_of
from support.requests import a_request


def test_an_agent_starts_its_first_model_when_its_queue_is_empty() -> None:
    agent = Agent(HOLDER, "A10", (M, N), AgentSettings())
    assert SwapModel(model=M) in agent.receive(Tick(), S)


def test_an_agent_starts_the_model_that_its_queue_needs() -> None:
    agent = Agent(HOLDER, "A10", (M, N), AgentSettings())
    queue = VirtualQueue(instance=HOLDER.instance, groups=(group_of(a_request(model="n")),))
    assert SwapModel(model=N) in agent.receive(QueueRead(queue=queue), S)


def test_a_request_is_acknowledged_only_after_its_result_is_stored() -> None:
    bench = Bench()
    request = a_request()
    submit = bench.start(request)
    bench.send(Progress(chunks=((submit.call.call_id, (7, 8)),)))
    bench.send(GenerationEnded(call_id=submit.call.call_id, finish="stop"))
    assert not bench.take(Ack)
    bench.store_appends()
    assert bench.log[request.id] == [7, 8]
    assert bench.outcomes == {request.id: Outcome.STOP}
    assert [ack.delivery for ack in bench.take(Ack)] == [delivery_of(request)]
    assert not bench.agent.state.requests.all


def test_pulls_never_exceed_free_slots_nor_what_the_group_has_left() -> None:
    bench = Bench(seqs_max=3)
    bench.queue(group_of(a_request(), count=2))
    assert [pull.limit for pull in bench.take(Pull)] == [2]
    bench.later(0.01)
    assert not bench.take(Pull), "what is being pulled is counted"
    bench = Bench(seqs_max=3)
    bench.queue(group_of(a_request(), count=100))
    assert [pull.limit for pull in bench.take(Pull)] == [3]


def test_a_class_found_empty_is_pulled_again_after_a_back_off() -> None:
    bench = Bench()
    bench.queue(group_of(a_request()))
    bench.take(Pull)
    bench.take(SetTimer)
    bench.send(Pulled(group=GroupId("g"), limit=1, messages=()))
    assert not bench.take(Pull)
    (timer,) = bench.take(SetTimer)
    bench.now_ns = timer.at_ns - 1
    bench.send(Tick())
    assert not bench.take(Pull), "the back-off lasts until its timer"
    bench.now_ns = timer.at_ns
    bench.send(Tick())
    assert len(bench.take(Pull)) == 1


def test_a_resumed_request_continues_its_log_with_reduced_limits() -> None:
    bench = Bench()
    submit = bench.start(a_request(max_tokens=8, min_tokens=2), output=(5, 6, 7))
    assert submit.call.prompt_ids == (1, 2, 3, 4, 5, 6, 7)
    assert (submit.call.sampling.max_tokens, submit.call.sampling.min_tokens) == (5, 0)


@pytest.mark.parametrize(
    ("output", "sampling", "outcome"),
    [
        ((5,) * 8, {}, Outcome.LENGTH),
        ((5, 9), {"stop_token_ids": (9,)}, Outcome.STOP),
        ((5, 9), {"eos_token_ids": (9,)}, Outcome.STOP),
    ],
)
def test_a_log_that_is_already_complete_ends_the_request_without_generating(
    output: TokenIds, sampling: dict[str, Any], outcome: Outcome
) -> None:
    bench = Bench()
    request = a_request(max_tokens=8, **sampling)
    bench.queue(group_of(request))
    bench.send(
        Pulled(
            group=GroupId("g"),
            limit=1,
            messages=(PulledMessage(delivery=delivery_of(request), request=request),),
        )
    )
    bench.log[request.id] = list(output)
    bench.answer(request, bench.granted(output))
    bench.store_appends()
    assert not bench.take(Submit)
    assert bench.outcomes == {request.id: outcome}


def test_a_preempted_request_whose_tokens_are_saved_wants_a_decision_soon() -> None:
    bench = Bench(seqs_max=1)
    batch = bench.start(a_request("batch", max_tokens=1000))
    bench.at_pace(token_s=0.1, service_s=1)
    bench.send(Progress(chunks=((batch.call.call_id, (7,)),)))
    bench.store_appends()
    urgent = a_request("urgent", deadline_ms=2_000, arrival_ns=bench.now_ns - S, max_tokens=1)
    bench.queue(group_of(urgent, name="u"))
    assert bench.take(Abort)
    bench.take(SetTimer)
    bench.send(GenerationEnded(call_id=batch.call.call_id, finish="abort"))
    bench.answer_append()
    assert bench.take(ReportParked)
    assert [timer.at_ns for timer in bench.take(SetTimer)] == [bench.now_ns + 1]


def test_an_urgent_request_preempts_a_batch_request_which_resumes_afterwards() -> None:
    bench = Bench(seqs_max=1)
    batch = a_request("batch", max_tokens=1000)
    slow = bench.start(batch)
    bench.at_pace(token_s=0.1, service_s=1)
    bench.send(Progress(chunks=((slow.call.call_id, (1, 2, 3)),)))
    urgent = a_request("urgent", deadline_ms=2000, arrival_ns=bench.now_ns)
    bench.queue(group_of(urgent, name="u"))
    assert bench.take(Abort) == [Abort(call_ids=(slow.call.call_id,))]
    bench.send(Progress(chunks=((slow.call.call_id, (4,)),)))
    bench.send(GenerationEnded(call_id=slow.call.call_id, finish="abort"))
    bench.store_appends()
    assert bench.log[batch.id] == [1, 2, 3, 4], "what the engine gave before the barrier is kept"
    assert [note.id for note in bench.take(ReportParked)] == [batch.id]
    assert [pull.group for pull in bench.take(Pull)] == ["u"], (
        "the urgent group goes before the parked request"
    )
    fast = bench.deliver(urgent, name="u")
    bench.send(GenerationEnded(call_id=fast.call.call_id, finish="stop"))
    bench.store_appends()
    (resumed,) = bench.take(Submit)
    assert resumed.call.prompt_ids == (*batch.prompt_ids, 1, 2, 3, 4)
    assert resumed.call.call_id != slow.call.call_id
    assert [note.id for note in bench.take(ReportResumed)] == [batch.id]


def test_a_generation_that_finished_before_its_abort_is_complete() -> None:
    bench = Bench(seqs_max=1)
    batch = a_request("batch", max_tokens=1000)
    slow = bench.start(batch)
    bench.at_pace(token_s=0.1, service_s=1)
    bench.queue(group_of(a_request("urgent", deadline_ms=2000, arrival_ns=bench.now_ns), name="u"))
    assert bench.take(Abort)
    bench.send(GenerationEnded(call_id=slow.call.call_id, finish="length"))
    bench.store_appends()
    assert bench.outcomes == {batch.id: Outcome.LENGTH}


def test_pinned_requests_are_never_preempted() -> None:
    bench = Bench(seqs_max=1)
    bench.start(a_request("pinned", max_tokens=1000, presence_penalty=1.0))
    bench.at_pace(token_s=0.1, service_s=1)
    bench.queue(group_of(a_request("urgent", deadline_ms=2000, arrival_ns=bench.now_ns), name="u"))
    assert not bench.take(Abort)


def test_nothing_is_preempted_while_a_slot_frees_in_time() -> None:
    bench = Bench(seqs_max=1)
    bench.start(a_request("batch", max_tokens=10))
    bench.at_pace(token_s=0.1, service_s=1)
    bench.queue(group_of(a_request("later", deadline_ms=60_000, arrival_ns=bench.now_ns), name="u"))
    assert not bench.take(Abort)


def test_a_lost_engine_returns_resumable_requests_with_their_tokens_logged_first() -> None:
    bench = Bench()
    request = a_request()
    submit = bench.start(request)
    bench.send(Progress(chunks=((submit.call.call_id, (1, 2)),)))
    bench.send(GenerationEnded(call_id=submit.call.call_id, finish="lost", detail="gone"))
    assert not bench.take(Return)
    bench.store_appends()
    assert bench.log[request.id] == [1, 2]
    (back,) = bench.take(Return)
    assert (back.id, back.delivery) == (request.id, delivery_of(request))


def test_a_request_that_the_engine_refuses_ends_with_an_outcome_of_its_own() -> None:
    bench = Bench()
    request = a_request()
    submit = bench.start(request)
    bench.send(GenerationEnded(call_id=submit.call.call_id, finish="refused", detail="too long"))
    (append,) = bench.take(Append)
    assert [(entry.outcome, entry.detail) for entry in append.entries] == [(Outcome.REFUSED, "too long")]


def test_a_cancelled_running_request_is_aborted_and_ends_with_the_given_outcome() -> None:
    bench = Bench()
    request = a_request()
    submit = bench.start(request)
    bench.send(CancelAsked(id=request.id, outcome=Outcome.CANCELLED))
    assert bench.take(Abort) == [Abort(call_ids=(submit.call.call_id,))]
    bench.send(GenerationEnded(call_id=submit.call.call_id, finish="abort"))
    bench.store_appends()
    assert bench.outcomes == {request.id: Outcome.CANCELLED}


def test_a_request_to_be_dropped_when_late_expires_while_running() -> None:
    bench = Bench()
    request = a_request(deadline_ms=100, arrival_ns=bench.now_ns, on_miss=OnMiss.DROP)
    submit = bench.start(request)
    bench.later(0.2)
    assert bench.take(Abort)
    bench.send(GenerationEnded(call_id=submit.call.call_id, finish="abort"))
    bench.store_appends()
    assert bench.outcomes == {request.id: Outcome.EXPIRED}


def test_an_unreachable_store_loses_no_token_and_repeats_none() -> None:
    bench = Bench()
    request = a_request()
    submit = bench.start(request)
    bench.send(Progress(chunks=((submit.call.call_id, (1,)),)))
    (append,) = bench.take(Append)
    bench.send(Progress(chunks=((submit.call.call_id, (2,)),)))
    bench.send(Appended(entries=append.entries, results=None))
    assert not bench.take(Append), "it waits before it tries again"
    bench.later(1.0)
    bench.store_appends()
    assert bench.log[request.id] == [1, 2]


def test_a_stale_lease_stops_the_generation_and_writes_nothing_more() -> None:
    bench = Bench()
    request = a_request()
    submit = bench.start(request)
    bench.send(Progress(chunks=((submit.call.call_id, (1,)),)))
    (append,) = bench.take(Append)
    actions = bench.send(Appended(entries=append.entries, results=(AppendResult.STALE,)))
    assert Abort(call_ids=(submit.call.call_id,)) in actions
    assert [a.delivery for a in actions if isinstance(a, Return)] == [delivery_of(request)]
    assert not bench.take(Ack), "nobody else may have its message"
    assert not bench.agent.state.requests.all
    bench.send(Progress(chunks=((submit.call.call_id, (2,)),)))
    bench.later(1.0)
    assert not bench.take(Append)


def test_draining_returns_everything_and_then_reports_drained() -> None:
    bench = Bench()
    request = a_request()
    submit = bench.start(request)
    bench.send(DrainAsked())
    assert bench.take(Abort)
    bench.send(GenerationEnded(call_id=submit.call.call_id, finish="abort"))
    bench.store_appends()
    assert [back.evicted for back in bench.take(Return)] == [False]
    assert bench.take(Drained) == [Drained()]


def test_the_delivery_of_a_long_running_request_is_renewed_once_per_period() -> None:
    bench = Bench()
    request = a_request()
    bench.start(request)
    bench.later(AgentSettings().delivery_renewal_s + 1)
    assert bench.take(RenewDelivery) == [RenewDelivery(delivery=delivery_of(request))]
    bench.later(AgentSettings().delivery_renewal_s / 5)
    assert not bench.take(RenewDelivery)


def test_a_group_of_another_model_swaps_models_once_the_running_batch_has_finished() -> None:
    bench = Bench()
    submit = bench.start(a_request())
    bench.queue(group_of(a_request("other", model="n"), name="o"))
    bench.later(1.0)
    assert not bench.take(SwapModel)[1:], "the first model was brought up, no other yet"
    bench.send(GenerationEnded(call_id=submit.call.call_id, finish="stop"))
    bench.store_appends()
    assert SwapModel(model=N) in bench.take(SwapModel)


def test_a_group_of_another_model_that_is_first_only_briefly_causes_no_swap() -> None:
    bench = Bench()
    bench.take(SwapModel)
    bench.queue(group_of(a_request("other", model="n"), name="o"))
    bench.later(0.05)
    bench.queue(group_of(a_request("mine")))
    bench.later(1.0)
    assert not bench.take(SwapModel)


def test_a_request_larger_than_the_free_cache_waits_until_it_fits() -> None:
    bench = Bench(seqs_max=4, kv_tokens=128)
    first = bench.start(a_request("a", prompt_tokens=64))
    big = a_request("b", prompt_tokens=64)
    bench.queue(group_of(big))
    bench.take(Pull)
    bench.send(
        Pulled(group=GroupId("g"), limit=1, messages=(PulledMessage(delivery=delivery_of(big), request=big),))
    )
    bench.log[big.id] = []
    bench.answer(big, bench.granted())
    assert not bench.take(Submit)
    bench.send(GenerationEnded(call_id=first.call.call_id, finish="stop"))
    assert [submit.id for submit in bench.take(Submit)] == [big.id]


@given(
    cuts=st.lists(st.integers(0, 40), max_size=12),
    appends_at=st.sets(st.integers(0, 12)),
    data=st.lists(st.integers(0, 255), min_size=1, max_size=40),
)
def test_any_chunking_of_tokens_gives_the_same_log(
    cuts: list[int], appends_at: set[int], data: list[int]
) -> None:
    bench = Bench()
    request = a_request(max_tokens=64)
    submit = bench.start(request)
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    for index, (left, right) in enumerate(itertools.pairwise(edges)):
        bench.send(Progress(chunks=((submit.call.call_id, tuple(data[left:right])),)))
        if index in appends_at:
            bench.store_appends()
    bench.send(GenerationEnded(call_id=submit.call.call_id, finish="stop"))
    bench.store_appends()
    assert bench.log[request.id] == data
    assert bench.outcomes == {request.id: Outcome.STOP}


def test_requests_already_pulled_run_before_a_group_of_another_model() -> None:
    bench = Bench()
    bench.take(SwapModel)
    mine, other = a_request("mine"), a_request("other", model="n")
    bench.queue(group_of(mine), group_of(other, name="o"))
    bench.take(Pull)
    bench.send(
        Pulled(
            group=GroupId("g"),
            limit=1,
            messages=(PulledMessage(delivery=delivery_of(mine), request=mine),),
        )
    )
    bench.later(1.0)
    bench.log[mine.id] = []
    bench.answer(mine, bench.granted())
    (submit,) = bench.take(Submit)
    bench.later(1.0)
    assert not bench.take(Return)
    bench.send(GenerationEnded(call_id=submit.call.call_id, finish="stop"))
    bench.store_appends()
    assert bench.outcomes == {mine.id: Outcome.STOP}
    assert bench.take(SwapModel) == [SwapModel(model=N)]


def test_a_request_of_a_model_that_is_not_awake_is_returned() -> None:
    bench = Bench()
    request = a_request(model="n")
    message = PulledMessage(delivery=delivery_of(request), request=request)
    bench.send(Pulled(group=None, limit=0, messages=(message,)))
    bench.log[request.id] = []
    bench.answer(request, bench.granted())
    assert not bench.take(Submit)
    assert [back.id for back in bench.take(Return)] == [request.id]


def test_nothing_is_pulled_or_started_while_the_engine_is_suspect() -> None:
    bench = Bench(seqs_max=4)
    submit = bench.start(a_request("a"))
    bench.send(GenerationEnded(call_id=submit.call.call_id, finish="lost", detail="broken pipe"))
    bench.queue(group_of(a_request("b")))
    assert bench.take(ProbeEngine) == [ProbeEngine()]
    assert not bench.take(Pull)
    bench.send(EngineProbed(healthy=False))
    assert not bench.take(Pull)
    bench.later(1.0)
    bench.send(EngineProbed(healthy=True))
    assert len(bench.take(Pull)) == 1


def test_an_abort_without_effect_is_repeated() -> None:
    bench = Bench()
    request = a_request()
    submit = bench.start(request)
    bench.send(CancelAsked(id=request.id, outcome=Outcome.CANCELLED))
    assert len(bench.take(Abort)) == 1
    bench.later(0.5)
    assert not bench.take(Abort)
    bench.later(1.0)
    assert bench.take(Abort) == [Abort(call_ids=(submit.call.call_id,))]


def test_a_request_larger_than_the_whole_cache_fails_and_blocks_no_other() -> None:
    bench = Bench(kv_tokens=64)
    big, small = a_request("big", prompt_tokens=200), a_request("small")
    bench.queue(group_of(big))
    bench.take(Pull)
    bench.send(
        Pulled(group=GroupId("g"), limit=1, messages=(PulledMessage(delivery=delivery_of(big), request=big),))
    )
    bench.take(AcquireLease)
    bench.log[big.id] = []
    bench.answer(big, bench.granted())
    bench.store_appends()
    assert bench.outcomes == {big.id: Outcome.FAILED}
    assert bench.start(small).id == small.id


def test_a_drain_during_a_preemption_returns_the_preempted_request() -> None:
    bench = Bench(seqs_max=1)
    batch = a_request("batch", max_tokens=1000)
    slow = bench.start(batch)
    bench.at_pace(token_s=0.1, service_s=1)
    bench.queue(group_of(a_request("urgent", deadline_ms=2000, arrival_ns=bench.now_ns), name="u"))
    assert bench.take(Abort)
    bench.send(DrainAsked())
    bench.send(GenerationEnded(call_id=slow.call.call_id, finish="abort"))
    bench.store_appends()
    assert [(back.id, back.evicted) for back in bench.take(Return)] == [(batch.id, True)]
    assert bench.take(Drained) == [Drained()]


def test_an_empty_group_at_the_head_does_not_delay_a_swap() -> None:
    bench = Bench()
    bench.take(SwapModel)
    bench.queue(group_of(a_request("ghost")), group_of(a_request("other", model="n"), name="o"))
    for _ in range(60):
        for pull in bench.take(Pull):
            bench.send(Pulled(group=pull.group, limit=pull.limit, messages=()))
        bench.later(0.05)
    assert bench.take(SwapModel) == [SwapModel(model=N)]


def test_a_pulled_request_starts_although_its_group_still_counts_it() -> None:
    """Until the queue is read again, its group's first arrival is that of what is gone."""
    bench = Bench(seqs_max=4)
    requests = [a_request(f"r{n}", deadline_ms=60_000, arrival_ns=bench.now_ns + n * S) for n in range(6)]
    bench.queue(group_of(requests[0], count=6))
    (pull,) = bench.take(Pull)
    messages = tuple(PulledMessage(delivery=delivery_of(each), request=each) for each in requests[:4])
    bench.send(Pulled(group=pull.group, limit=pull.limit, messages=messages))
    for request in requests[:4]:
        bench.answer(request, bench.granted())
    assert [submit.id for submit in bench.take(Submit)] == ["r0", "r1", "r2", "r3"]
    assert not bench.take(Pull), "there is no place for more"
