"""Preemption for a model swap: the batch must be empty before the next model serves."""

from dataclasses import replace

import pytest

from qlm.agents.core.events import GenerationEnded, Progress
from qlm.agents.core.request import TrackedRequest
from qlm.agents.core.scheduling.preemption import victims_of_swap
from qlm.agents.core.state import AgentSettings
from qlm.domain.actions import Abort, Demote, Return, Submit, SwapModel
from qlm.domain.formats.extensions import NO_REQUEST_EXTENSIONS, RequestExtensions
from qlm.domain.group import request_class
from qlm.domain.ids import ModelId
from qlm.domain.slo import BatchSlo, DeadlineSlo, Slo, TokenSlo
from support.agent_bench import Bench, N, S, delivery_of, group_of
from support.requests import a_request

NOW_NS = 1000 * S
STREAM = TokenSlo(ttft_ms=1000)


def tracked(
    name: str, slo: Slo, *, tokens: int = 0, priority: int = 0, arrival_s: float = 1000
) -> TrackedRequest:
    request = replace(
        a_request(name, arrival_ns=round(arrival_s * S)),
        slo=slo,
        cls=request_class(ModelId("m"), slo, priority),
    )
    made = TrackedRequest(request, delivery=delivery_of(request), delivered_ns=0, group=None)
    made.output = [7] * tokens
    return made


def going(*running: TrackedRequest, due_s: float = 1005, priority: int = 0) -> set[str]:
    return {each.id for each in victims_of_swap(running, head=(priority, due_s * S, 0), now_ns=NOW_NS)}


def test_answered_streams_and_less_urgent_requests_are_preempted() -> None:
    answered, waiting = tracked("answered", STREAM, tokens=3), tracked("waiting", STREAM)
    report, batch = tracked("report", DeadlineSlo(deadline_ms=60_000)), tracked("batch", BatchSlo())
    assert going(answered, waiting, report, batch) == {"answered", "report", "batch"}


def test_an_answered_stream_of_a_higher_priority_keeps_running() -> None:
    assert going(tracked("vip", STREAM, tokens=3, priority=-1)) == set()
    assert going(tracked("vip", STREAM, tokens=3, priority=-1), priority=-1) == {"vip"}


def test_answers_due_before_the_head_keep_running() -> None:
    assert going(tracked("due", DeadlineSlo(deadline_ms=2000), tokens=3)) == set()


def test_a_late_head_preempts_no_request_that_may_meet_its_deadline() -> None:
    report, answered = (
        tracked("report", DeadlineSlo(deadline_ms=60_000)),
        tracked("answered", STREAM, tokens=3),
    )
    assert going(report, answered, tracked("batch", BatchSlo()), due_s=999) == {"answered", "batch"}


@pytest.mark.parametrize(("last_s", "evicts"), [(40, False), (80, True)])
def test_a_group_that_is_late_as_a_whole_preempts_nothing(last_s: float, evicts: bool) -> None:
    bench = Bench()
    bench.start(a_request("batch", max_tokens=1000))
    bench.at_pace(token_s=0.1, service_s=1)
    bench.later(99)
    late = a_request("late", model="n", deadline_ms=30_000, arrival_ns=40 * S)
    bench.queue(replace(group_of(late), last_arrival_ns=round(last_s * S)))
    bench.later(1)
    assert bool(bench.take(Abort)) == evicts


def evict(bench: Bench, running: Submit, *, waited_s: int) -> None:
    """Evict a generation for a group of another model that is due 30 s after its arrival."""
    urgent = a_request("urgent", model="n", deadline_ms=30_000, arrival_ns=bench.now_ns - waited_s * S)
    bench.queue(replace(group_of(urgent), last_arrival_ns=bench.now_ns))
    bench.later(1)
    assert bench.take(Abort)
    bench.send(GenerationEnded(call_id=running.call.call_id, finish="abort"))
    bench.store_appends()


def test_a_request_evicted_for_a_swap_returns_as_evicted() -> None:
    bench = Bench()
    batch = bench.start(a_request("batch", max_tokens=1000))
    bench.at_pace(token_s=0.1, service_s=1)
    bench.later(99)
    evict(bench, batch, waited_s=20)
    assert [(back.id, back.evicted) for back in bench.take(Return)] == [(batch.id, True)]


def evicted_stream(
    bench: Bench, slo: Slo, *, late: bool = False, extensions: RequestExtensions = NO_REQUEST_EXTENSIONS
) -> None:
    """Evict a request with one token for a group of another model."""
    cls = request_class(ModelId("m"), slo, 0)
    request = replace(
        a_request("stream", arrival_ns=bench.now_ns, max_tokens=1000),
        slo=slo,
        cls=cls.missed() if late else cls,
        extensions=extensions,
    )
    stream = bench.start(request)
    bench.send(Progress(chunks=((stream.call.call_id, (7,)),)))
    bench.store_appends()
    bench.at_pace(token_s=0.1, service_s=1)
    bench.later(30)
    evict(bench, stream, waited_s=28)


def test_a_stream_evicted_after_the_first_token_does_not_return_as_one_whose_deadline_is_ahead() -> None:
    # Two models would evict each other's answered streams in turns, until their deadlines have passed.
    bench = Bench()
    evicted_stream(bench, TokenSlo(ttft_ms=60_000))
    ((demoted, evicted),) = [(each.request.cls, each.evicted) for each in bench.take(Demote)]
    assert (demoted.late, demoted.queue, evicted) == (True, "qlm.class.m.ttft-60s.all.late", True)
    assert not bench.take(Return)


@pytest.mark.parametrize(
    ("slo", "settings", "late"),
    [
        (TokenSlo(ttft_ms=60_000, tpot_ms=200), AgentSettings(), False),
        (DeadlineSlo(deadline_ms=600_000), AgentSettings(), False),
        (TokenSlo(ttft_ms=60_000), AgentSettings(demotes=False), False),
        (TokenSlo(ttft_ms=60_000), AgentSettings(), True),
    ],
)
def test_a_request_whose_objective_is_open_returns_to_its_class(
    slo: Slo, settings: AgentSettings, late: bool
) -> None:
    bench = Bench(settings=settings)
    evicted_stream(bench, slo, late=late)
    assert [back.evicted for back in bench.take(Return)] == [True]
    assert not bench.take(Demote)


def test_a_stream_with_a_deadline_for_its_whole_answer_returns_to_its_class() -> None:
    bench = Bench()
    evicted_stream(bench, TokenSlo(ttft_ms=60_000), extensions=RequestExtensions(deadline_ms=600_000))
    assert [back.evicted for back in bench.take(Return)] == [True]
    assert not bench.take(Demote)


@pytest.mark.parametrize(("slo", "demoted"), [(TokenSlo(ttft_ms=60_000), True), (BatchSlo(), False)])
def test_a_stream_that_waits_preempted_leaves_for_a_swap_as_an_evicted_one_does(
    slo: Slo, demoted: bool
) -> None:
    bench = Bench(seqs_max=1)
    cls = request_class(ModelId("m"), slo, 0)
    stream = replace(a_request("stream", arrival_ns=bench.now_ns, max_tokens=1000), slo=slo, cls=cls)
    slow = bench.start(stream)
    bench.send(Progress(chunks=((slow.call.call_id, (7,)),)))
    bench.at_pace(token_s=0.1, service_s=1)
    urgent = a_request("urgent", deadline_ms=2_000, arrival_ns=bench.now_ns)
    bench.queue(group_of(urgent, name="u"))
    bench.send(GenerationEnded(call_id=slow.call.call_id, finish="abort"))
    bench.store_appends()
    fast = bench.deliver(urgent, name="u")
    other = a_request("other", model="n", deadline_ms=30_000, arrival_ns=bench.now_ns - 20 * S)
    bench.queue(group_of(other, name="o"))
    bench.later(1)
    bench.send(GenerationEnded(call_id=fast.call.call_id, finish="stop"))
    bench.store_appends()
    assert [(each.request.id, each.evicted) for each in bench.take(Demote)] == [("stream", False)] * demoted
    assert [back.id for back in bench.take(Return)] == ["stream"] * (not demoted)


@pytest.mark.parametrize(("running", "swaps"), [(1, True), (2, False)])
def test_a_swap_for_which_all_was_evicted_is_carried_through_if_it_is_late_meanwhile(
    running: int, swaps: bool
) -> None:
    # Eviction waits for the last moment. Where a request that is due sooner runs on, the others may, too.
    bench = Bench()
    due = a_request("due", deadline_ms=1000, arrival_ns=bench.now_ns, max_tokens=1000)
    calls = [bench.start(due, name="d") for _ in range(running - 1)]
    calls += [bench.start(a_request("chat", deadline_ms=600_000, arrival_ns=bench.now_ns, max_tokens=1000))]
    bench.at_pace(token_s=0.1, service_s=1)
    urgent = a_request("urgent", model="n", deadline_ms=30_000, arrival_ns=bench.now_ns - 28 * S)
    bench.queue(replace(group_of(urgent, name="u"), last_arrival_ns=urgent.arrival_ns))
    bench.later(1)
    assert bench.take(Abort) == [Abort(call_ids=(calls[-1].call.call_id,))]
    bench.take(SwapModel)
    bench.later(1.5)
    bench.send(GenerationEnded(call_id=calls[-1].call.call_id, finish="abort"))
    bench.store_appends()
    if running > 1:
        bench.send(GenerationEnded(call_id=calls[0].call.call_id, finish="stop"))
        bench.store_appends()
    bench.later(0.2)
    assert [swap.model for swap in bench.take(SwapModel)] == ["n"] * swaps


def test_a_late_group_gets_its_model_once_the_batch_has_finished() -> None:
    bench = Bench()
    batch = bench.start(a_request("batch"))
    bench.later(99)
    late = a_request("late", model="n", deadline_ms=30_000, arrival_ns=40 * S)
    bench.queue(replace(group_of(late), last_arrival_ns=40 * S))
    bench.later(1)
    bench.send(GenerationEnded(call_id=batch.call.call_id, finish="stop"))
    bench.store_appends()
    assert bench.take(SwapModel)[1:] == [SwapModel(model=N)]


def test_batch_work_of_the_same_model_is_preempted_for_a_slightly_late_head() -> None:
    bench = Bench(seqs_max=1, settings=AgentSettings(demotes=False))
    bench.start(a_request("batch", max_tokens=1000))
    bench.at_pace(token_s=0.1, service_s=1)
    bench.later(1)
    urgent = a_request("urgent", deadline_ms=50, arrival_ns=bench.now_ns - S // 10)
    bench.queue(replace(group_of(urgent, name="u"), last_arrival_ns=urgent.arrival_ns))
    assert bench.take(Abort)
