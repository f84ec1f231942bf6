"""Requests that cannot be in time any more make way for those that can."""

from dataclasses import replace

from qlm.agents.events import GenerationEnded, Progress, Pulled
from qlm.agents.protocol import AgentSettings
from qlm.domain.actions import Abort, Demote, NoteParked, Pull, PulledMessage, Submit, TakeLease
from qlm.domain.group import request_class
from qlm.domain.ids import GroupId, ModelId, RequestId
from qlm.domain.request import Request
from qlm.domain.slo import TokenSlo
from support.agent_bench import Bench, S, delivery_of, group_of
from support.requests import a_request


def chat(name: str, arrival_ns: int, ttft_ms: float = 1000) -> Request:
    """A request with a first-token objective."""
    slo = TokenSlo(ttft_ms=ttft_ms)
    return replace(
        a_request(name, arrival_ns=arrival_ns, max_tokens=100),
        slo=slo,
        cls=request_class(ModelId("m"), slo, 0),
    )


def pull(bench: Bench, *requests: Request, left: int = 0, name: str = "g") -> list[Submit]:
    """Answer the pull for a group that has `left` more, and all leases; return what starts."""
    bench.queue(group_of(requests[0], name=name, count=len(requests) + left))
    asked = sum(each.limit for each in bench.take(Pull))
    messages = tuple(PulledMessage(delivery=delivery_of(each), request=each) for each in requests)
    bench.send(Pulled(group=GroupId(name), asked=asked, messages=messages))
    for lease in bench.take(TakeLease):
        bench.log.setdefault(lease.card.id, [])
        bench.answer(next(each for each in requests if each.id == lease.card.id), bench.granted())
    return bench.take(Submit)


def test_a_late_request_makes_way_for_one_that_can_be_in_time() -> None:
    bench = Bench(seqs_max=2)
    bench.later(10)
    late, fresh = chat("late", bench.now_ns - 2 * S), chat("fresh", bench.now_ns)
    assert [submit.id for submit in pull(bench, late, fresh)] == ["fresh"]
    bench.store_appends()
    (demoted,) = bench.take(Demote)
    assert demoted.request == replace(late, cls=late.cls.missed())
    assert (demoted.delivery, demoted.epoch.n) == (delivery_of(late), 1)
    assert demoted.request.cls.queue == "qlm.class.m.ttft-1s.all.late"
    assert "late" not in bench.agent.held


def test_a_late_request_is_served_at_once_if_nobody_else_waits() -> None:
    bench = Bench()
    bench.later(10)
    assert [submit.id for submit in pull(bench, chat("late", bench.now_ns - 2 * S))] == ["late"]


def test_a_request_of_a_late_class_is_served_when_its_turn_comes() -> None:
    bench = Bench()
    bench.later(10)
    late = chat("late", bench.now_ns - 2 * S)
    late = replace(late, cls=late.cls.missed())
    assert [submit.id for submit in pull(bench, late, left=5)] == ["late"]


def answered(bench: Bench, like: Request, count: int, took_s: float) -> None:
    """Let so many requests of a class run at once, and end."""
    asked = [
        replace(like, id=RequestId(f"a{bench.now_ns}-{n}"), arrival_ns=bench.now_ns) for n in range(count)
    ]
    submits = pull(bench, *asked)
    assert len(submits) == count
    bench.later(took_s)
    for submit in submits:
        bench.send(GenerationEnded(call_id=submit.call.call_id, finish="stop"))
    bench.store_appends()


def waited(bench: Bench, like: Request, seconds: float) -> Request:
    return replace(like, id=RequestId(f"w{seconds:g}"), arrival_ns=bench.now_ns - round(seconds * S))


def report(bench: Bench) -> Request:
    """A request whose whole answer is due in 20 s."""
    made = a_request("report", deadline_ms=20_000, arrival_ns=bench.now_ns)
    return replace(made, cls=request_class(made.model, made.slo, 0))


def test_what_answers_take_counts_but_a_tenth_of_the_target_may_be_waited() -> None:
    """Answers of 40 s with a target of 20 s: after 1 s there is some hope, after 3 s none."""
    bench = Bench(seqs_max=64, settings=AgentSettings(pull_max=64))
    answered(bench, report(bench), 40, took_s=40)
    like = report(bench)
    started = pull(bench, waited(bench, like, 3), waited(bench, like, 1), left=5)
    assert [submit.id for submit in started] == ["w1"]


def test_one_slow_answer_proves_little() -> None:
    bench = Bench(seqs_max=16)
    answered(bench, report(bench), 1, took_s=30)
    started = pull(bench, waited(bench, report(bench), 10), left=5)
    assert [submit.id for submit in started] == ["w10"]


def test_late_requests_that_are_soon_answered_give_their_class_hope_again() -> None:
    bench = Bench(seqs_max=16)
    answered(bench, report(bench), 16, took_s=60)
    late = report(bench)
    answered(bench, replace(late, cls=late.cls.missed()), 16, took_s=1)
    started = pull(bench, waited(bench, late, 3), left=5)
    assert [submit.id for submit in started] == ["w3"]


def test_late_requests_are_put_aside_even_when_no_place_is_free() -> None:
    """Nobody is evicted for a late head: without that, those behind it would wait for it for ever."""
    bench = Bench(seqs_max=1)
    bench.later(10)
    running = a_request("running", deadline_ms=600_000, arrival_ns=bench.now_ns, max_tokens=1000)
    bench.start(running)
    bench.agent.pace = bench.agent.pace.seen(tokens=10, elapsed_s=1.0)
    late, fresh = chat("late", bench.now_ns - 2 * S), chat("fresh", bench.now_ns)
    assert pull(bench, late, fresh, left=3) == []
    bench.store_appends()
    assert [demoted.request.id for demoted in bench.take(Demote)] == ["late"]
    assert [len(abort.call_ids) for abort in bench.take(Abort)] == [1], "the fresh one may evict"


def test_an_evicted_request_whose_moment_has_passed_is_demoted_with_its_tokens() -> None:
    bench = Bench(seqs_max=1)
    slow = a_request("slow", deadline_ms=20_000, arrival_ns=bench.now_ns, max_tokens=1000)
    slow = replace(slow, cls=request_class(slow.model, slow.slo, 0))
    submit = bench.start(slow)
    bench.agent.pace = bench.agent.pace.seen(tokens=10, elapsed_s=1.0)
    bench.send(Progress(chunks=((submit.call.call_id, (1, 2)),)))
    bench.queue(group_of(chat("urgent", bench.now_ns), name="u", count=40))
    assert bench.take(Abort)
    bench.send(GenerationEnded(call_id=submit.call.call_id, finish="abort"))
    bench.store_appends()
    assert bench.take(NoteParked)
    bench.later(19)
    assert not bench.take(Demote)
    bench.later(2)
    bench.store_appends()
    assert [demoted.request.id for demoted in bench.take(Demote)] == ["slow"]
    assert bench.log[slow.id] == [1, 2]


def test_without_demotion_late_requests_keep_their_place() -> None:
    bench = Bench(settings=AgentSettings(demotes=False))
    bench.later(10)
    late, fresh = chat("late", bench.now_ns - 2 * S), chat("fresh", bench.now_ns)
    assert [submit.id for submit in pull(bench, late, fresh)] == ["late", "fresh"]
