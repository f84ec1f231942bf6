"""Demotion of requests that can no longer meet their deadline."""

from dataclasses import replace

from qlm.agents.core.events import GenerationEnded, Progress, Pulled
from qlm.agents.core.state import AgentSettings
from qlm.domain.actions import Abort, AcquireLease, Demote, Pull, PulledMessage, ReportParked, Submit
from qlm.domain.group import Group, request_class
from qlm.domain.ids import GroupId, ModelId, RequestId
from qlm.domain.request import Request
from qlm.domain.slo import TokenSlo
from support.agent_bench import Bench, S, delivery_of, group_of
from support.requests import a_request


def chat(name: str, arrival_ns: int, ttft_ms: float = 1000) -> Request:
    """Return a request with a first-token objective."""
    slo = TokenSlo(ttft_ms=ttft_ms)
    return replace(
        a_request(name, arrival_ns=arrival_ns, max_tokens=100),
        slo=slo,
        cls=request_class(ModelId("m"), slo, 0),
    )


def pull(bench: Bench, *requests: Request, left: int = 0, name: str = "g") -> list[Submit]:
    """Answer the pull for a group that has `left` more, and all leases; return what starts."""
    bench.queue(group_of(requests[0], name=name, count=len(requests) + left))
    limit = sum(each.limit for each in bench.take(Pull))
    messages = tuple(PulledMessage(delivery=delivery_of(each), request=each) for each in requests)
    bench.send(Pulled(group=GroupId(name), limit=limit, messages=messages))
    for lease in bench.take(AcquireLease):
        bench.log.setdefault(lease.metadata.id, [])
        bench.answer(next(each for each in requests if each.id == lease.metadata.id), bench.granted())
    return bench.take(Submit)


def test_a_late_request_is_demoted_for_one_that_can_meet_its_deadline() -> None:
    bench = Bench(seqs_max=2)
    bench.later(10)
    late, fresh = chat("late", bench.now_ns - 2 * S), chat("fresh", bench.now_ns)
    assert [submit.id for submit in pull(bench, late, fresh)] == ["fresh"]
    bench.store_appends()
    (demoted,) = bench.take(Demote)
    assert demoted.request == replace(late, cls=late.cls.missed())
    assert (demoted.delivery, demoted.epoch.n) == (delivery_of(late), 1)
    assert demoted.request.cls.queue == "qlm.class.m.ttft-1s.all.late"
    assert "late" not in bench.agent.state.requests.all


def test_a_late_request_is_served_at_once_if_no_other_waits() -> None:
    bench = Bench()
    bench.later(10)
    assert [submit.id for submit in pull(bench, chat("late", bench.now_ns - 2 * S))] == ["late"]


def test_a_demoted_request_is_served_when_its_group_is_first() -> None:
    bench = Bench()
    bench.later(10)
    late = chat("late", bench.now_ns - 2 * S)
    late = replace(late, cls=late.cls.missed())
    assert [submit.id for submit in pull(bench, late, left=5)] == ["late"]


def answered(bench: Bench, like: Request, count: int, took_s: float) -> None:
    """Run `count` requests of a class at once until they end."""
    requests = [
        replace(like, id=RequestId(f"a{bench.now_ns}-{n}"), arrival_ns=bench.now_ns) for n in range(count)
    ]
    submits = pull(bench, *requests)
    assert len(submits) == count
    bench.later(took_s)
    for submit in submits:
        bench.send(GenerationEnded(call_id=submit.call.call_id, finish="stop"))
    bench.store_appends()


def waited(bench: Bench, like: Request, seconds: float) -> Request:
    return replace(like, id=RequestId(f"w{seconds:g}"), arrival_ns=bench.now_ns - round(seconds * S))


def report(bench: Bench) -> Request:
    """Return a request whose whole answer is due in 20 s."""
    made = a_request("report", deadline_ms=20_000, arrival_ns=bench.now_ns)
    return replace(made, cls=request_class(made.model, made.slo, 0))


def test_the_lead_time_counts_but_leaves_a_tenth_of_the_target_to_wait() -> None:
    """Answers take 40 s with a target of 20 s: after 1 s the target may be met, after 3 s not."""
    bench = Bench(seqs_max=64, settings=AgentSettings(pull_max=64))
    answered(bench, report(bench), 40, took_s=40)
    like = report(bench)
    started = pull(bench, waited(bench, like, 3), waited(bench, like, 1), left=5)
    assert [submit.id for submit in started] == ["w1"]


def test_one_slow_answer_hardly_changes_the_lead_time() -> None:
    bench = Bench(seqs_max=16)
    answered(bench, report(bench), 1, took_s=30)
    started = pull(bench, waited(bench, report(bench), 10), left=5)
    assert [submit.id for submit in started] == ["w10"]


def test_fast_answers_of_demoted_requests_shorten_the_lead_time_of_their_class() -> None:
    bench = Bench(seqs_max=16)
    answered(bench, report(bench), 16, took_s=60)
    late = report(bench)
    answered(bench, replace(late, cls=late.cls.missed()), 16, took_s=1)
    started = pull(bench, waited(bench, late, 3), left=5)
    assert [submit.id for submit in started] == ["w3"]


def test_late_requests_are_demoted_even_when_no_slot_is_free() -> None:
    """A late head preempts nothing; without demotion, requests behind it would wait forever."""
    bench = Bench(seqs_max=1)
    bench.later(10)
    running = a_request("running", deadline_ms=600_000, arrival_ns=bench.now_ns, max_tokens=1000)
    bench.start(running)
    bench.at_pace(token_s=0.1, service_s=1)
    late, fresh = chat("late", bench.now_ns - 2 * S), chat("fresh", bench.now_ns)
    assert pull(bench, late, fresh, left=3) == []
    bench.store_appends()
    assert [demoted.request.id for demoted in bench.take(Demote)] == ["late"]
    assert [len(abort.call_ids) for abort in bench.take(Abort)] == [1], "the fresh one may evict"


def full(bench: Bench) -> None:
    """Fill the only slot with a request that is as urgent as any."""
    bench.later(10)
    running = a_request("running", deadline_ms=600_000, arrival_ns=bench.now_ns, max_tokens=1000)
    bench.start(running)
    bench.at_pace(token_s=0.1, service_s=1)


def scans(bench: Bench, *groups: Group) -> list[tuple[str, int]]:
    """Return what is pulled after a reading of the virtual queue."""
    bench.take(Pull)
    bench.queue(*groups)
    return [(each.group, each.limit) for each in bench.take(Pull)]


def test_late_requests_of_a_group_behind_the_head_do_not_hold_up_those_behind_them() -> None:
    """Else each that arrives there is late in turn: the plan puts a group last whose requests are late."""
    bench = Bench(seqs_max=1)
    full(bench)
    head = group_of(a_request("batch", arrival_ns=bench.now_ns), name="head", count=9)
    late, fresh = chat("late", bench.now_ns - 4 * S), chat("fresh", bench.now_ns)
    behind = replace(group_of(late, name="behind", count=8), last_arrival_ns=fresh.arrival_ns)
    assert scans(bench, head, behind) == [("behind", 6)], "of eight in 4 s those that came 1 s ago or earlier"
    message = PulledMessage(delivery=delivery_of(late), request=late)
    bench.send(Pulled(group=behind.id, limit=6, messages=(message,)))
    assert bench.take(AcquireLease)
    bench.answer(late, bench.granted())
    bench.store_appends()
    assert [demoted.request.id for demoted in bench.take(Demote)] == ["late"]
    assert scans(bench, head, behind) == [], "its first request is another one now, of an unknown arrival"
    later = replace(behind, head_arrival_ns=fresh.arrival_ns, last_arrival_ns=None, count=2)
    assert scans(bench, head, later) == [], "it has time"
    bench.later(2)
    assert [(each.group, each.limit) for each in bench.take(Pull)] == [("behind", 1)]


def test_where_agents_do_not_demote_no_group_behind_the_head_is_pulled() -> None:
    bench = Bench(seqs_max=1, settings=AgentSettings(demotes=False))
    full(bench)
    head = group_of(a_request("batch", arrival_ns=bench.now_ns), name="head", count=9)
    assert scans(bench, head, group_of(chat("late", bench.now_ns - 4 * S), name="behind", count=8)) == []


def test_a_preempted_request_whose_deadline_has_passed_is_demoted_with_its_tokens() -> None:
    bench = Bench(seqs_max=1)
    slow = a_request("slow", deadline_ms=20_000, arrival_ns=bench.now_ns, max_tokens=1000)
    slow = replace(slow, cls=request_class(slow.model, slow.slo, 0))
    submit = bench.start(slow)
    bench.at_pace(token_s=0.1, service_s=1)
    bench.send(Progress(chunks=((submit.call.call_id, (1, 2)),)))
    bench.queue(group_of(chat("urgent", bench.now_ns), name="u", count=40))
    assert bench.take(Abort)
    bench.send(GenerationEnded(call_id=submit.call.call_id, finish="abort"))
    bench.store_appends()
    assert bench.take(ReportParked)
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
