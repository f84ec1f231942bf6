"""The clock of preemptions: what the head needs, at the pace of its own model, of what each leg generated."""

from dataclasses import replace

import pytest

from qlm.agents.core.events import GenerationEnded, Progress
from qlm.agents.core.stats.pace import Pace
from qlm.domain.actions import Abort, SetTimer
from qlm.domain.group import RequestClass
from qlm.domain.request import Request
from qlm.domain.slo import TokenSlo
from support.agent_bench import Bench, M, N, S, group_of
from support.requests import a_request


def wants_first_token(id: str, arrival_ns: int, *, ttft_ms: float) -> Request:
    slo = TokenSlo(ttft_ms=ttft_ms)
    cls = RequestClass(M, slo.label(), target_ms=ttft_ms)
    return replace(a_request(id, arrival_ns=arrival_ns, max_tokens=2000), slo=slo, cls=cls)


def answers(bench: Bench, count: int, *, tokens: int, each_s: float, first_s: float | None = None) -> None:
    """Serve answers one after the other; with a first token wanted in 10 s if `first_s` is given."""
    for number in range(count):
        id, now_ns = f"w{number}", bench.now_ns
        request = a_request(id, max_tokens=2000, arrival_ns=now_ns)
        call_id = bench.start(
            request if first_s is None else wants_first_token(id, now_ns, ttft_ms=10_000)
        ).call.call_id
        bench.later(first_s or 0.0)
        bench.send(Progress(chunks=((call_id, (0,)),)))
        bench.later(each_s - (first_s or 0.0))
        bench.send(Progress(chunks=((call_id, tuple(range(1, tokens))),)))
        bench.send(GenerationEnded(call_id=call_id, finish="stop"))
        bench.store_appends()


def test_a_first_token_is_not_judged_by_whole_answers() -> None:
    bench = Bench(seqs_max=2)
    answers(bench, 10, tokens=500, each_s=20.0)
    bench.start(a_request("near-its-end", max_tokens=5, arrival_ns=bench.now_ns))
    bench.start(a_request("long", max_tokens=2000, arrival_ns=bench.now_ns))
    bench.queue(group_of(wants_first_token("urgent", bench.now_ns, ttft_ms=10_000), name="u"))
    assert not bench.take(Abort), "a batch slot comes free in 0.2 s, the first token is wanted in 10 s"


def test_the_time_to_the_first_token_is_kept_free_before_the_deadline() -> None:
    bench = Bench(seqs_max=1)
    answers(bench, 40, tokens=500, each_s=20.0, first_s=2.0)
    takes_s = bench.agent.state.stats.lead_times.takes_s(wants_first_token("x", 0, ttft_ms=10_000).cls)
    assert takes_s == pytest.approx(2.0, rel=0.2)
    bench.start(a_request("batch", max_tokens=101, arrival_ns=bench.now_ns))
    bench.take(SetTimer)
    bench.queue(group_of(wants_first_token("urgent", bench.now_ns, ttft_ms=10_000), name="u"))
    (timer,) = bench.take(SetTimer)
    assert (timer.at_ns - bench.now_ns) / S == pytest.approx(10.0 - 101 * 0.04 - takes_s, abs=0.05)


def test_a_resumed_answer_counts_with_what_its_last_leg_generated() -> None:
    bench = Bench(seqs_max=2)
    resumed = bench.start(a_request("a", max_tokens=2000, arrival_ns=bench.now_ns), tuple(range(900)))
    bench.later(4.0)
    bench.send(Progress(chunks=((resumed.call.call_id, tuple(range(100))),)))
    bench.send(GenerationEnded(call_id=resumed.call.call_id, finish="stop"))
    assert bench.agent.state.stats.pace_of(M) == Pace(token_s=0.04, service_s=0.0)


def test_a_resumed_answer_says_nothing_about_whole_ones() -> None:
    pace = Pace().seen(tokens=500, elapsed_s=20.0).seen(tokens=10, elapsed_s=0.4, whole=False)
    assert (pace.token_s, pace.service_s) == pytest.approx((0.04, 20.0))


def test_a_resumed_answer_leaves_the_time_of_its_class_alone() -> None:
    bench = Bench(seqs_max=2)
    request = a_request("a", deadline_ms=60_000, max_tokens=2000, arrival_ns=bench.now_ns)
    resumed = bench.start(request, tuple(range(900)))
    bench.later(4.0)
    bench.send(GenerationEnded(call_id=resumed.call.call_id, finish="stop"))
    assert bench.agent.state.stats.lead_times.takes_s(request.cls) == 0.0


def test_each_model_has_its_own_pace() -> None:
    bench = Bench(seqs_max=2)
    answers(bench, 10, tokens=500, each_s=100.0)
    slow = bench.agent.state.stats.pace_of(M)
    bench.awake(N)
    assert bench.agent.state.stats.pace_of(N) == Pace()
    assert bench.agent.state.stats.pace_of(M) == slow
    assert (slow.token_s, slow.service_s) == pytest.approx((0.2, 100.0))


def test_an_urgent_request_on_an_engine_of_which_no_answer_has_ended_waits_half_its_time_at_most() -> None:
    bench = Bench(seqs_max=1)
    began_ns = bench.now_ns
    bench.start(a_request("batch", max_tokens=1000, arrival_ns=began_ns))
    bench.later(0.5)
    bench.take(SetTimer)
    bench.queue(group_of(wants_first_token("urgent", bench.now_ns, ttft_ms=2000), name="u"))
    assert not bench.take(Abort)
    (timer,) = bench.take(SetTimer)
    assert (timer.at_ns - began_ns) / S == pytest.approx(0.5 + 2.0 / 2 - 0.25, abs=0.01)
    bench.later((timer.at_ns - bench.now_ns) / S)
    assert bench.take(Abort)
