"""Economy of the agent: no needless writes, timers or decisions; and its counters."""

import math
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.agents.core.events import Appended, GenerationEnded, LeaseAnswered, Progress, Pulled, Tick
from qlm.agents.core.output.log import decides_nothing
from qlm.agents.core.request import PREEMPTIONS_MAX, TrackedRequest
from qlm.agents.core.request_table import RunningIndex
from qlm.agents.core.scheduling.slot_wait import MISS_MIN
from qlm.agents.core.state import AgentSettings
from qlm.agents.core.stats.pace import Pace
from qlm.domain.actions import Abort, Append, Pull, PulledMessage, SetTimer, Submit, SwapModel
from qlm.domain.fleet import ServedWork, StagedWork
from qlm.domain.ids import GroupId, RequestId
from qlm.domain.length_histogram import length_bin
from qlm.domain.outcome import Outcome
from qlm.domain.output import AppendResult
from qlm.domain.request import Request
from qlm.domain.slo import OnMiss
from support.agent_bench import Bench, M, N, S, delivery_of, group_of
from support.requests import a_request

MS = S // 1000


def store(bench: Bench, *appends: Append) -> None:
    """Confirm writes."""
    for append in appends:
        bench.send(Appended(entries=append.entries, results=(AppendResult.TAKEN,) * len(append.entries)))


def pull_all(bench: Bench, requests: list[Request]) -> list[Submit]:
    """Pull, lease and submit a group of requests."""
    bench.queue(group_of(requests[0], count=len(requests)))
    (pull,) = bench.take(Pull)
    assert pull.limit == len(requests)
    messages = tuple(PulledMessage(delivery=delivery_of(r), request=r) for r in requests)
    bench.send(Pulled(group=GroupId("g"), limit=pull.limit, messages=messages))
    for request in requests:
        bench.log[request.id] = []
        bench.send(LeaseAnswered(id=request.id, answer=bench.granted()))
    return bench.take(Submit)


def tokens(submit: Submit, *ids: int) -> Progress:
    return Progress(chunks=((submit.call.call_id, ids),))


# the output log

COARSE: Final = AgentSettings(append_interval_s=0.02, append_at_once_max=0)
"""Tokens in the middle of answers wait, however few requests run."""


def test_a_first_token_is_written_at_once_without_tokens_of_other_answers() -> None:
    bench = Bench(settings=COARSE)
    old, new = pull_all(bench, [a_request("old"), a_request("new")])
    bench.send(tokens(old, 1))
    store(bench, *bench.take(Append))
    bench.send(tokens(old, 2))
    assert not bench.take(Append), "a token in the middle of an answer waits for the interval"
    bench.send(tokens(new, 9))
    (append,) = bench.take(Append)
    assert [(entry.id, entry.token_ids) for entry in append.entries] == [("new", (9,))]
    store(bench, append)
    bench.later(0.02)
    (append,) = bench.take(Append)
    assert [(entry.id, entry.offset, entry.token_ids) for entry in append.entries] == [("old", 1, (2,))]


def test_tokens_in_the_middle_of_an_answer_wait_no_longer_because_others_begin() -> None:
    bench = Bench(seqs_max=12, settings=COARSE)
    old, *others = pull_all(bench, [a_request(f"r{n}") for n in range(9)])
    bench.send(tokens(old, 1))
    store(bench, *bench.take(Append))
    bench.send(tokens(old, 2))
    written_ns = None
    for other in others:
        bench.now_ns += 5 * MS
        bench.send(tokens(other, 1))
        (append,) = bench.take(Append)
        if written_ns is None and "r0" in {entry.id for entry in append.entries}:
            written_ns = bench.now_ns
        store(bench, append)
    assert written_ns == S + 20 * MS, "an urgent write is no reason to let the interval begin again"


def test_with_few_requests_all_tokens_are_written_at_once() -> None:
    bench = Bench(seqs_max=3, settings=AgentSettings(append_interval_s=0.02, append_at_once_max=2))
    one, two, three = pull_all(bench, [a_request(f"r{n}") for n in range(3)])
    bench.send(GenerationEnded(call_id=three.call.call_id, finish="stop"))
    bench.store_appends()
    for token in range(4):
        bench.send(tokens(one, token))
        (first,) = bench.take(Append)
        bench.send(tokens(two, token))
        assert not bench.take(Append), "there is one write of tokens at a time"
        store(bench, first)
        (second,) = bench.take(Append)
        store(bench, second)
        written = [(each.id, each.offset, each.token_ids) for each in (*first.entries, *second.entries)]
        assert written == [("r0", token, (token,)), ("r1", token, (token,))]


def test_an_end_waits_for_no_tokens_of_others_and_they_not_for_it() -> None:
    bench = Bench(seqs_max=3, settings=COARSE)
    one, two, three = pull_all(bench, [a_request(f"r{n}") for n in range(3)])
    bench.send(tokens(one, 1))
    (of_one,) = bench.take(Append)
    bench.send(tokens(two, 1))
    bench.send(GenerationEnded(call_id=two.call.call_id, finish="stop"))
    (end_of_two,) = bench.take(Append)
    assert [(each.id, each.token_ids, each.outcome) for each in end_of_two.entries] == [("r1", (1,), "stop")]
    store(bench, of_one)
    bench.send(tokens(three, 1))
    (of_three,) = bench.take(Append)
    assert [entry.id for entry in of_three.entries] == ["r2"]
    store(bench, end_of_two, of_three)
    assert "r1" not in bench.agent.state.requests.all


def test_an_end_waits_for_the_tokens_of_the_same_request() -> None:
    bench = Bench(settings=COARSE)
    (submit,) = pull_all(bench, [a_request()])
    bench.send(tokens(submit, 1))
    (append,) = bench.take(Append)
    bench.send(tokens(submit, 2))
    bench.send(GenerationEnded(call_id=submit.call.call_id, finish="stop"))
    assert not bench.take(Append)
    bench.send(Appended(entries=append.entries, results=None))
    bench.later(1.0)
    (append,) = bench.take(Append)
    assert [(each.offset, each.token_ids, each.outcome) for each in append.entries] == [(0, (1, 2), "stop")]


def test_late_timers_make_the_interval_longer_up_to_a_limit() -> None:
    bench = Bench(settings=AgentSettings(append_interval_s=0.003, append_at_once_max=0))
    (submit,) = pull_all(bench, [a_request(max_tokens=1_000)])
    intervals_ms = []
    for late_ms in (0, 0, 1, 2, 10, 1000, 0):
        bench.send(Progress(chunks=((submit.call.call_id, (1,)),), late_ns=late_ms * MS))
        bench.later(1.0)
        store(bench, *bench.take(Append))
        bench.take(SetTimer)
        bench.send(tokens(submit, 1))
        intervals_ms.append((min(timer.at_ns for timer in bench.take(SetTimer)) - bench.now_ns) / MS)
        bench.later(1.0)
        store(bench, *bench.take(Append))
    assert intervals_ms == [3, 3, 4, 8, 40, 50, 3]


def test_the_timer_of_the_interval_is_requested_once() -> None:
    bench = Bench(settings=COARSE)
    (submit,) = pull_all(bench, [a_request()])
    bench.send(tokens(submit, 1))
    store(bench, *bench.take(Append))
    bench.take(SetTimer)
    for token in range(2, 7):
        bench.now_ns += MS
        bench.send(tokens(submit, token))
    assert bench.take(SetTimer) == [SetTimer(at_ns=S + 20 * MS)]
    bench.send(Tick())
    assert bench.take(SetTimer) == [SetTimer(at_ns=S + 20 * MS)], "a Tick may have used up the timer"


def test_tokens_wait_until_a_lost_lease_is_restored() -> None:
    bench = Bench()
    request = a_request()
    (submit,) = pull_all(bench, [request])
    bench.send(tokens(submit, 1))
    (append,) = bench.take(Append)
    bench.send(tokens(submit, 2))
    bench.send(Appended(entries=append.entries, results=(AppendResult.UNKNOWN,)))
    bench.later(1.0)
    assert not bench.take(Append), "without a lease nothing may be written"
    bench.answer(request, bench.granted((1, 2)))
    bench.log[request.id] = [1, 2]
    bench.send(tokens(submit, 3))
    bench.store_appends()
    assert bench.log[request.id] == [1, 2, 3]


@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    steps=st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), max_size=4), max_size=6),
    joint=st.booleans(),
)
def test_tokens_of_many_generations_in_one_event_give_what_single_events_give(
    lengths: list[int], steps: list[list[tuple[int, int]]], joint: bool
) -> None:
    bench = Bench(seqs_max=4)
    requests = [a_request(f"r{n}", max_tokens=64) for n in range(len(lengths))]
    submits = pull_all(bench, requests)
    said: dict[RequestId, list[int]] = {request.id: [] for request in requests}
    for step in steps:
        chunks = []
        for who, count in step:
            submit = submits[who % len(submits)]
            made = tuple(range(len(said[submit.id]), len(said[submit.id]) + count))
            said[submit.id] += made
            chunks.append((submit.call.call_id, made))
        for event in [tuple(chunks)] if joint else [(chunk,) for chunk in chunks]:
            bench.send(Progress(chunks=event))
        kv = bench.agent.state.requests.kv
        assert kv.tokens == sum(4 + len(tokens) for tokens in said.values())
        bench.store_appends()
    assert bench.log == said


def test_ended_requests_are_not_kept_until_their_deadline() -> None:
    bench = Bench()
    for n in range(300):
        request = a_request(f"r{n}", deadline_ms=86_400_000, arrival_ns=bench.now_ns, on_miss=OnMiss.DROP)
        submit = bench.start(request)
        bench.send(GenerationEnded(call_id=submit.call.call_id, finish="stop"))
        store(bench, *bench.take(Append))
    assert not bench.agent.state.requests.all
    assert len(bench.agent.state.requests.drop_times) <= 64


# eviction


def full_with_a_head(settings: AgentSettings, *, model: str = "m") -> tuple[Bench, Submit]:
    """One batch request runs where only one fits; a head waits whose deadline is in 10 s.

    The engine needs 0.1 s per token and 1 s per request: to let the 50 tokens of the running request go
    first is in time for 10 - 5 - 1 = 4 s.
    """
    bench = Bench(seqs_max=1, settings=settings)
    slow = bench.start(a_request("batch", max_tokens=50))
    bench.at_pace(token_s=0.1, service_s=1)
    bench.take(SetTimer)
    bench.queue(group_of(a_request("u", model=model, deadline_ms=10_000, arrival_ns=bench.now_ns), name="u"))
    return bench, slow


def test_the_decision_to_preempt_is_checked_again_when_it_can_change_and_not_before() -> None:
    bench, slow = full_with_a_head(AgentSettings())
    (timer,) = bench.take(SetTimer)
    assert timer.at_ns == bench.now_ns + 4 * S + 1
    bench.now_ns = timer.at_ns - 1
    bench.send(Tick())
    assert not bench.take(Abort)
    bench.now_ns = timer.at_ns
    bench.send(Tick())
    assert not bench.take(Abort), "of a hundred such requests 99 end in the 5 s that are left"
    *_, timer = bench.take(SetTimer)
    assert timer.at_ns == pytest.approx(bench.now_ns + (5 + math.log(MISS_MIN)) * S, abs=0.05 * S)
    bench.now_ns = timer.at_ns
    bench.send(Tick())
    assert bench.take(Abort) == [Abort(call_ids=(slow.call.call_id,))]


def test_tokens_that_come_meanwhile_postpone_the_preemption() -> None:
    bench, slow = full_with_a_head(AgentSettings())
    (timer,) = bench.take(SetTimer)
    bench.send(tokens(slow, *range(30)))
    bench.now_ns = timer.at_ns
    bench.send(Tick())
    assert not bench.take(Abort)
    assert SetTimer(at_ns=timer.at_ns + 3 * S) in bench.take(SetTimer)


def test_no_timer_runs_while_no_request_is_preemptible() -> None:
    bench = Bench(seqs_max=1)
    bench.start(a_request("first", deadline_ms=5_000, arrival_ns=bench.now_ns))
    bench.take(SetTimer)
    bench.queue(group_of(a_request("later", deadline_ms=10_000, arrival_ns=bench.now_ns), name="u"))
    assert not bench.take(SetTimer)


def test_without_preemption_running_requests_finish_though_the_head_is_late() -> None:
    bench, slow = full_with_a_head(AgentSettings(preempts=False))
    bench.later(60.0)
    assert not bench.take(Abort)
    bench.send(GenerationEnded(call_id=slow.call.call_id, finish="stop"))
    assert [pull.group for pull in bench.take(Pull)] == ["u"]


def test_without_preemption_models_are_swapped_when_the_running_requests_have_finished() -> None:
    bench, slow = full_with_a_head(AgentSettings(preempts=False), model="n")
    bench.later(60.0)
    bench.later(60.0)
    assert not bench.take(Abort)
    assert bench.take(SwapModel) == [SwapModel(model=M)], "so far only the first model was brought up"
    bench.send(GenerationEnded(call_id=slow.call.call_id, finish="stop"))
    bench.store_appends()
    assert bench.take(SwapModel) == [SwapModel(model=N)]


def test_running_requests_are_preempted_for_a_swap_when_the_head_would_be_late() -> None:
    bench, slow = full_with_a_head(AgentSettings(), model="n")
    bench.later(1.0)
    assert not bench.take(Abort)
    bench.later(4.1)  # 5 s of tokens, and less than that to the deadline
    assert bench.take(Abort) == [Abort(call_ids=(slow.call.call_id,))]


# what the engine has done


def test_the_status_reports_the_work_of_the_engine() -> None:
    bench = Bench(seqs_max=3)
    first, second = pull_all(bench, [a_request("a"), a_request("b")])
    bench.now_ns += 2 * S
    bench.send(Progress(chunks=((first.call.call_id, (1, 2)), (second.call.call_id, (3,)))))
    bench.send(GenerationEnded(call_id=first.call.call_id, finish="stop"))
    bench.now_ns += 3 * S
    bench.send(GenerationEnded(call_id=second.call.call_id, finish="lost"))
    bench.now_ns += 10 * S
    bench.send(Tick())
    done = ServedWork(
        busy_s=5.0,
        request_s=7.0,
        prompt_tokens=8,
        output_tokens=3,
        ended=1,
        token_steps=10.0,
        token_step_squares=100.0,
    )
    assert bench.agent.status().work == done


def test_running_requests_count_up_to_the_last_event() -> None:
    bench = Bench()
    bench.start(a_request())
    bench.later(1.5)
    work = bench.agent.status().work
    assert (work.busy_s, work.request_s) == (1.5, 1.5)


def test_the_work_of_another_engine_starts_at_zero() -> None:
    bench = Bench()
    submit = bench.start(a_request())
    bench.later(1.0)
    bench.send(GenerationEnded(call_id=submit.call.call_id, finish="stop"))
    bench.queue(group_of(a_request("other", model="n"), name="o"))
    bench.store_appends()
    bench.later(1.0)
    assert SwapModel(model=N) in bench.take(SwapModel)
    assert bench.agent.status().work == ServedWork(), "no engine is awake"
    bench.later(30.0)
    bench.awake(N)
    bench.later(1.0)
    assert bench.agent.status().work == ServedWork()


def test_a_resume_counts_the_output_so_far_as_prompt() -> None:
    bench = Bench()
    bench.start(a_request(max_tokens=8), output=(5, 6, 7))
    assert bench.agent.status().work.prompt_tokens == 7


def preempted_after(*first: int) -> Bench:
    """Return an agent that preempted its only request after these tokens, for a head not yet pulled."""
    bench, slow = full_with_a_head(AgentSettings())
    if first:
        bench.send(tokens(slow, *first))
        bench.store_appends()
    bench.later(8.0)
    assert bench.take(Abort) == [Abort(call_ids=(slow.call.call_id,))]
    bench.send(GenerationEnded(call_id=slow.call.call_id, finish="abort"))
    bench.store_appends()
    return bench


def test_the_status_reports_ready_work_by_class() -> None:
    bench = preempted_after(7, 8)
    status, tracked = bench.agent.status(), next(iter(bench.agent.state.requests.all.values()))
    staged = StagedWork(cls=tracked.request.cls, evicted=1, evicted_tokens=tracked.request.prompt_tokens + 2)
    assert (status.staged, status.parked) == ((staged,), 1)
    pull_all(bench, [a_request("u", deadline_ms=10_000, arrival_ns=bench.now_ns)])
    assert bench.agent.status().staged == (staged,)


def test_the_status_reports_the_lengths_of_open_answers() -> None:
    bench = Bench(seqs_max=3)
    first, second, _ = pull_all(bench, [a_request("a"), a_request("b"), a_request("c")])
    bench.send(Progress(chunks=((first.call.call_id, (1, 2)), (second.call.call_id, (3, 4)))))
    (answers,) = bench.agent.status().answers
    assert answers.counts == ((length_bin(2), 2, 4),), "one of them has not begun"
    bench.send(tokens(second, *range(30)))
    bench.send(GenerationEnded(call_id=first.call.call_id, finish="stop"))
    (answers,) = bench.agent.status().answers
    assert answers.counts == ((length_bin(32), 1, 32),)


def test_prompts_count_as_withdrawn_without_a_token_and_as_repeated_when_computed_again() -> None:
    untouched, begun = preempted_after().agent.status().work, preempted_after(7, 8)
    assert (untouched.withdrawn_tokens, untouched.repeated_tokens) == (untouched.prompt_tokens, 0)
    work = begun.agent.status().work
    assert (work.withdrawn_tokens, work.repeated_tokens) == (0, 0)
    begun.send(Pulled(group=GroupId("u"), limit=1, messages=()))
    (again,) = begun.take(Submit)
    begun.send(tokens(again, 9))
    begun.send(GenerationEnded(call_id=again.call.call_id, finish="stop"))
    prompt, work = len(again.call.prompt_ids) - 2, begun.agent.status().work
    assert (work.withdrawn_tokens, work.repeated_tokens) == (0, prompt + 2)
    assert (work.ended, work.token_steps) == (1, 3 * (prompt + 1.5))
    assert work.token_step_squares == work.token_steps**2


def batch_requests(count: int, *, preemptions: int = 0) -> dict[RequestId, TrackedRequest]:
    """Return batch requests, each with one token less to generate than the one before."""
    requests = [a_request(f"r{n}", max_tokens=50 - n) for n in range(count)]
    tracked = [
        TrackedRequest(each, delivery=delivery_of(each), delivered_ns=0, group=None) for each in requests
    ]
    for each in tracked:
        each.generation.preemptions = preemptions
    return {each.id: each for each in tracked}


def test_a_request_resumed_from_its_last_preemption_is_not_preemptible() -> None:
    running = batch_requests(1, preemptions=PREEMPTIONS_MAX - 1)
    candidates, (tracked,) = RunningIndex(running), running.values()
    candidates.started(tracked)
    assert candidates.any_less_urgent((0, 0.0, 0))
    tracked.generation.preemptions += 1
    candidates.started(tracked)
    assert not candidates.any_less_urgent((0, 0.0, 0))


def test_the_wait_for_a_slot_follows_the_request_closest_to_its_limit() -> None:
    running = batch_requests(3)
    first = running[RequestId("r0")]
    candidates, pace = RunningIndex(running), Pace(token_s=1.0, service_s=0.0)
    assert candidates.preempt_at_ns(100 * S, pace, 0) == 52 * S + 1, "48 tokens to go"
    first.output.extend(range(10))
    assert candidates.preempt_at_ns(100 * S, pace, 55 * S) == 60 * S + 1, "40 tokens to go"
    del running[first.request.id]
    assert candidates.preempt_at_ns(100 * S, pace, 55 * S) <= 55 * S, "48 tokens to go: it is time"


def test_the_wait_for_a_slot_is_that_for_a_long_answer_where_the_limit_is_far() -> None:
    running = batch_requests(3)
    for each in running.values():
        each.generation.started_ns = 60 * S
    candidates = RunningIndex(running)
    answers_take_5_s = Pace(token_s=1.0, service_s=5.0)
    assert candidates.preempt_at_ns(100 * S, answers_take_5_s, 0) == 75 * S + 1, "not 48 s for 48 tokens"
    answers_take_20_s = Pace(token_s=1.0, service_s=20.0)
    assert RunningIndex(running).preempt_at_ns(100 * S, answers_take_20_s, 0) == 52 * S + 1, "48 tokens to go"
    running[RequestId("r0")].generation.started_ns = 0
    assert candidates.preempt_at_ns(100 * S, answers_take_5_s, 60 * S) == 75 * S + 1, "but others will end"
    del running[RequestId("r1")], running[RequestId("r2")]
    alone_ns = candidates.preempt_at_ns(100 * S, answers_take_5_s, 60 * S)
    assert alone_ns == 50 * S + 1, "50 s more after 50 s"


# events of one moment


def test_requests_that_end_together_cause_one_pull_and_one_write() -> None:
    bench = Bench(seqs_max=2)
    first, second = pull_all(bench, [a_request("first"), a_request("second")])
    bench.queue(group_of(a_request("next"), count=4, name="h"))
    assert not bench.take(Pull), "there is no room yet"
    joint = Progress(chunks=((first.call.call_id, (1, 2)), (second.call.call_id, (3,))))
    ended = [GenerationEnded(call_id=each.call.call_id, finish="stop") for each in (first, second)]
    bench.actions += bench.agent.receive_all([joint, *ended], bench.now_ns)
    assert [pull.limit for pull in bench.take(Pull)] == [2]
    (append,) = bench.take(Append)
    assert [(entry.id, entry.token_ids, entry.outcome) for entry in append.entries] == [
        ("first", (1, 2), Outcome.STOP),
        ("second", (3,), Outcome.STOP),
    ]


def test_tokens_alone_cause_no_decision() -> None:
    bench = Bench(seqs_max=2)
    (submit,) = pull_all(bench, [a_request()])
    actions = bench.agent.receive_all([tokens(submit, 1), tokens(submit, 2)], bench.now_ns)
    (append,) = actions
    assert isinstance(append, Append)
    assert [entry.token_ids for entry in append.entries] == [(1, 2)]


@pytest.mark.parametrize(
    ("results", "running", "nothing"),
    [
        ((AppendResult.TAKEN,), 1, True),
        ((AppendResult.TAKEN,), 0, False),  # the last end may be what a swap waits for
        ((AppendResult.STALE,), 1, False),
        (None, 1, False),
    ],
)
def test_a_written_end_decides_nothing_while_others_generate(
    results: tuple[AppendResult, ...] | None, running: int, nothing: bool
) -> None:
    bench = Bench()
    ended, *others = pull_all(bench, [a_request(f"r-{n}") for n in range(1 + running)])
    bench.send(GenerationEnded(call_id=ended.call.call_id, finish="stop"))
    (append,) = bench.take(Append)
    written = Appended(entries=append.entries, results=results)
    assert decides_nothing(written, bench.agent.state.requests) is nothing
    assert len(others) == running
