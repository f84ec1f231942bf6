"""The adaptive concurrency limit: fewer requests run while some need a faster pace."""

from dataclasses import replace

import pytest

from qlm.agents.core.events import GenerationEnded, Progress, Pulled
from qlm.agents.core.state import AgentSettings
from qlm.agents.core.stats.concurrency import AnswerLengths
from qlm.domain.actions import Abort, AcquireLease, Append, Pull, PulledMessage, Submit
from qlm.domain.formats.extensions import RequestExtensions
from qlm.domain.group import request_class
from qlm.domain.ids import GroupId, ModelId
from qlm.domain.request import Request
from qlm.domain.slo import ReadingSlo, Slo, TokenSlo
from support.agent_bench import Bench, S, delivery_of, group_of
from support.requests import a_request

SLOTS = 16
LIMITED = AgentSettings(limits_concurrency=True)
ANSWER = 100
"""Tokens of the answer from which the agent learns how long answers are."""


def timed(name: str, bench: Bench) -> Request:
    """A request whose whole answer is due in 10 s: 85 ms per token, if it is as long as the first."""
    return a_request(name, deadline_ms=10_000, arrival_ns=bench.now_ns, max_tokens=1000)


def paced(name: str, bench: Bench, slo: Slo) -> Request:
    return replace(
        a_request(name, arrival_ns=bench.now_ns, max_tokens=1000),
        slo=slo,
        cls=request_class(ModelId("m"), slo, 0),
    )


def start(bench: Bench, *requests: Request) -> list[Submit]:
    """Start requests of one class: its group, the pull, the leases."""
    bench.queue(group_of(requests[0], name="g", count=len(requests)))
    bench.take(Pull)
    messages = tuple(PulledMessage(delivery=delivery_of(each), request=each) for each in requests)
    bench.send(Pulled(group=GroupId("g"), limit=len(requests), messages=messages))
    for lease in bench.take(AcquireLease):
        bench.log.setdefault(lease.metadata.id, [])
        bench.answer(next(each for each in requests if each.id == lease.metadata.id), bench.granted())
    bench.queue()
    return bench.take(Submit)


def run(
    bench: Bench, calls: list[Submit], *, seconds: float, token_s: float, slope_s: float = 0.0
) -> list[Abort]:
    """Generate a token per call and step, and end stopped calls; return the stopped ones.

    A token takes `token_s`, and `slope_s` for each that runs.
    """
    until_ns, aborts = bench.now_ns + round(seconds * S), []
    while bench.now_ns < until_ns:
        alive = [call for call in calls if call.call.call_id in bench.agent.state.requests.calls]
        bench.send(Progress(chunks=tuple((call.call.call_id, (7,)) for call in alive)))
        bench.later(token_s + slope_s * len(alive))
        aborts += bench.take(Abort)
        for call_id in stopped(aborts) & bench.agent.state.requests.calls.keys():
            bench.send(GenerationEnded(call_id=call_id, finish="abort"))
        bench.take(Append)
    return aborts


def learned(settings: AgentSettings = LIMITED) -> Bench:
    """An agent that has seen one answer of the class that `timed` makes."""
    bench = Bench(seqs_max=SLOTS, kv_tokens=65536, settings=settings)
    calls = start(bench, timed("first", bench))
    run(bench, calls, seconds=2, token_s=2 / ANSWER)
    bench.send(GenerationEnded(call_id=calls[0].call.call_id, finish="stop"))
    bench.store_appends()
    return bench


def full(bench: Bench, timed_count: int) -> tuple[list[Submit], list[Submit]]:
    """Fill all slots: requests with a deadline, then batch work."""
    deadlines = start(bench, *(timed(f"t{n}", bench) for n in range(timed_count)))
    batch = start(bench, *(a_request(f"b{n}", max_tokens=1000) for n in range(SLOTS - timed_count)))
    assert len(deadlines) + len(batch) == SLOTS
    return deadlines, batch


def stopped(aborts: list[Abort]) -> set[str]:
    return {call_id for abort in aborts for call_id in abort.call_ids}


def test_batch_work_is_preempted_when_a_token_takes_too_long() -> None:
    bench = learned()
    deadlines, batch = full(bench, 6)
    # 120 ms per token with all places taken; with 10 requests it would be the 85 ms that are needed.
    gone = stopped(run(bench, [*deadlines, *batch], seconds=6, token_s=0.035, slope_s=0.005))
    assert gone and gone <= {each.call.call_id for each in batch}
    assert bench.agent.state.requests.kv.best_effort_limit == pytest.approx(10, abs=1)
    assert SLOTS - len(gone) == pytest.approx(10, abs=1.5)


def test_batch_work_above_the_limit_is_not_pulled_and_work_with_a_deadline_is() -> None:
    bench = learned()
    deadlines, batch = full(bench, 6)
    run(bench, [*deadlines, *batch], seconds=6, token_s=0.035, slope_s=0.005)
    assert not bench.take(Submit)
    bench.queue(group_of(a_request("more"), count=20))
    assert not bench.take(Pull)
    timely = a_request("timely", deadline_ms=100_000, arrival_ns=bench.now_ns)
    bench.queue(group_of(timely, name="t", count=20))
    assert [pull.group for pull in bench.take(Pull)] == ["t"]


@pytest.mark.parametrize("token_s", [0.02, 0.08])
def test_a_pace_that_is_fast_enough_preempts_nothing(token_s: float) -> None:
    bench = learned()
    deadlines, batch = full(bench, 6)
    assert not run(bench, [*deadlines, *batch], seconds=6, token_s=token_s)
    assert bench.agent.state.requests.kv.best_effort_limit == SLOTS


def test_half_of_the_slots_are_used_however_slow_the_engine_is() -> None:
    bench = learned()
    deadlines, batch = full(bench, 2)
    gone = stopped(run(bench, [*deadlines, *batch], seconds=20, token_s=0.5))
    assert len(gone) == SLOTS // 2


def test_requests_with_a_deadline_are_never_preempted_for_the_pace() -> None:
    bench = learned()
    deadlines, batch = full(bench, 14)
    gone = stopped(run(bench, [*deadlines, *batch], seconds=10, token_s=0.5))
    assert gone == {each.call.call_id for each in batch}


def test_all_slots_are_used_again_when_no_request_needs_a_pace() -> None:
    bench = learned()
    deadlines, batch = full(bench, 6)
    run(bench, [*deadlines, *batch], seconds=4, token_s=0.12)
    assert bench.agent.state.requests.kv.best_effort_limit < SLOTS
    for each in deadlines:
        bench.send(GenerationEnded(call_id=each.call.call_id, finish="stop"))
    bench.store_appends()
    bench.later(1)
    assert bench.agent.state.requests.kv.best_effort_limit == SLOTS


@pytest.mark.parametrize(
    "slo", [TokenSlo(ttft_ms=1000, tpot_ms=50), ReadingSlo(ttft_ms=1000, tokens_per_s=20)]
)
def test_a_stream_gets_the_speed_it_was_promised(slo: Slo) -> None:
    bench = Bench(seqs_max=SLOTS, kv_tokens=65536, settings=LIMITED)
    streams = start(bench, *(paced(f"s{n}", bench, slo) for n in range(4)))
    batch = start(bench, *(a_request(f"b{n}", max_tokens=1000) for n in range(SLOTS - 4)))
    gone = stopped(run(bench, [*streams, *batch], seconds=6, token_s=0.02, slope_s=0.003))
    assert gone and gone <= {each.call.call_id for each in batch}
    assert SLOTS - len(gone) == pytest.approx(10, abs=1.5)


def test_concurrency_is_limited_only_when_configured() -> None:
    bench = learned(AgentSettings())
    deadlines, batch = full(bench, 6)
    assert not run(bench, [*deadlines, *batch], seconds=6, token_s=0.5)


def test_a_long_answer_is_a_standard_deviation_above_the_mean_but_no_longer_than_any_seen() -> None:
    lengths = AnswerLengths()
    for tokens in (90, 110) * 50:
        lengths.seen(tokens)
    assert lengths.long_tokens == pytest.approx(110, abs=0.5)
    lengths.seen(200)
    assert 111 < lengths.long_tokens < 130


def test_batch_work_of_the_lowest_priority_is_preempted_first() -> None:
    bench = learned()
    deadlines = start(bench, *(timed(f"t{n}", bench) for n in range(6)))
    high = start(bench, *(a_request(f"h{n}", max_tokens=1000, priority=-5) for n in range(5)))
    low = start(bench, *(a_request(f"l{n}", max_tokens=1000) for n in range(5)))
    gone = stopped(run(bench, [*deadlines, *high, *low], seconds=6, token_s=0.035, slope_s=0.005))
    assert {each.call.call_id for each in low} >= gone or gone >= {each.call.call_id for each in low}
    assert gone


def of_task(request: Request) -> Request:
    return replace(request, extensions=RequestExtensions(task_id="t"))


def pulls(bench: Bench, request: Request) -> int:
    """Messages that the agent pulls of a group of 20 such requests."""
    bench.queue(group_of(request, name="more", count=20))
    return sum(pull.limit for pull in bench.take(Pull))


def beside(bench: Bench, request: Request, *, batch: int) -> list[Submit]:
    """Run a request with batch work, for a second."""
    calls = start(bench, request)
    calls += start(bench, *(a_request(f"b{n}", max_tokens=1000) for n in range(batch)))
    assert not run(bench, calls, seconds=1, token_s=0.05)
    return calls


def test_beside_a_call_of_a_task_batch_work_starts_in_half_of_the_slots_only() -> None:
    bench = learned(AgentSettings())
    beside(bench, of_task(timed("call", bench)), batch=3)
    assert pulls(bench, a_request("more")) == SLOTS // 2 - 4


def test_beside_a_call_of_a_task_late_work_yields_and_work_with_a_deadline_does_not() -> None:
    bench = learned(AgentSettings())
    beside(bench, of_task(timed("call", bench)), batch=SLOTS // 2)
    timely = a_request("timely", deadline_ms=100_000, arrival_ns=bench.now_ns)
    assert pulls(bench, replace(timely, cls=timely.cls.missed())) == 0
    assert pulls(bench, timely) > 0


def test_a_call_of_a_task_that_cannot_be_in_time_and_one_of_no_task_hold_nothing_back() -> None:
    for hopeless in (True, False):
        bench = learned(AgentSettings())
        call = timed("call", bench)
        beside(bench, replace(of_task(call), cls=call.cls.missed()) if hopeless else call, batch=3)
        assert pulls(bench, a_request("more")) >= SLOTS - 4


def test_the_slots_are_free_again_when_the_call_has_ended() -> None:
    bench = learned(AgentSettings())
    calls = beside(bench, of_task(timed("call", bench)), batch=3)
    bench.send(GenerationEnded(call_id=calls[0].call.call_id, finish="stop"))
    bench.store_appends()
    bench.later(1)
    assert pulls(bench, a_request("more")) >= SLOTS - 3
