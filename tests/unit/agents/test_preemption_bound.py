"""Preemptions of a request are bounded over its whole life: its output log has their number."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qlm.agents.core.events import GenerationEnded, Pulled
from qlm.agents.core.request import PREEMPTIONS_MAX
from qlm.agents.core.state import AgentSettings
from qlm.agents.core.stats.pace import Pace
from qlm.domain.actions import Abort, AcquireLease, Append, PulledMessage, Return, Submit, SwapModel
from qlm.domain.ids import GroupId
from qlm.domain.notices import DrainAsked
from qlm.domain.request import Request
from support.agent_bench import Bench, N, S, delivery_of, group_of
from support.requests import a_request

SETTINGS = AgentSettings(visits=True)


def leased(bench: Bench, request: Request, preemptions: int) -> Submit:
    """Pull a request that was preempted so often, elsewhere, and return its submission."""
    bench.queue(group_of(request))
    message = PulledMessage(delivery=delivery_of(request), request=request)
    bench.send(Pulled(group=GroupId("g"), limit=1, messages=(message,)))
    bench.take(AcquireLease)
    bench.log[request.id] = []
    bench.answer(request, replace(bench.granted(), preemptions=preemptions))
    (submit,) = bench.take(Submit)
    return submit


def leaves(bench: Bench, limit_s: float = 60.0) -> bool:
    """Let a model with deadlines wait until the agent leaves for it; False if it does not in that time."""
    due = a_request("u", model="n", deadline_ms=6_000, arrival_ns=bench.now_ns)
    group = replace(group_of(due, 30, "u"), last_arrival_ns=bench.now_ns)
    bench.queue(group)
    began_ns = bench.now_ns
    while bench.agent.state.visit.leaving is None:
        bench.later(0.1)
        if bench.now_ns - began_ns > limit_s * S:
            return False
    return True


def test_an_eviction_is_counted_in_the_log_before_the_request_returns() -> None:
    bench = Bench(settings=SETTINGS)
    running = leased(bench, a_request("batch", arrival_ns=bench.now_ns), 2)
    assert leaves(bench) and bench.take(Abort)
    bench.send(GenerationEnded(call_id=running.call.call_id, finish="abort"))
    bench.later(0.05)
    assert not bench.take(Return), "the log comes first"
    (entry,) = [entry for append in bench.actions if isinstance(append, Append) for entry in append.entries]
    assert entry.extensions.preemptions == 3
    bench.store_appends()
    assert [each.evicted for each in bench.take(Return)] == [True]


def test_who_was_preempted_too_often_finishes_before_the_swap_and_others_run_on_meanwhile() -> None:
    bench = Bench(settings=SETTINGS)
    often = leased(bench, a_request("often", arrival_ns=bench.now_ns), PREEMPTIONS_MAX)
    other = leased(bench, a_request("other", arrival_ns=bench.now_ns), 0)
    assert leaves(bench)
    bench.later(1.0)
    assert not bench.take(Abort)
    bench.send(GenerationEnded(call_id=often.call.call_id, finish="stop"))
    assert [abort.call_ids for abort in bench.take(Abort)] == [(other.call.call_id,)]
    bench.send(GenerationEnded(call_id=other.call.call_id, finish="abort"))
    bench.store_appends()
    assert [swap.model for swap in bench.take(SwapModel)][-1:] == [N]


def preempted(settings: AgentSettings, request: Request, preemptions: int) -> int | None:
    """Lease a request to a new agent that another model needs; return its count if it was evicted."""
    bench = Bench(settings=settings)
    bench.agent.state.stats.paces[request.model] = Pace(token_s=0.1, service_s=1.0)
    running = leased(bench, replace(request, arrival_ns=bench.now_ns), preemptions)
    due = a_request("u", model="n", deadline_ms=6_000, arrival_ns=bench.now_ns)
    bench.queue(replace(group_of(due, 30, "u"), last_arrival_ns=bench.now_ns))
    for _ in range(250):
        bench.later(0.1)
        bench.store_appends()
        if bench.take(Abort):
            break
    else:
        return None
    bench.send(GenerationEnded(call_id=running.call.call_id, finish="abort"))
    bench.later(0.05)
    entries = [entry for each in bench.actions if isinstance(each, Append) for entry in each.entries]
    bench.store_appends()
    assert [each.evicted for each in bench.take(Return)] == [True]
    return entries[-1].extensions.preemptions


@given(st.lists(st.booleans(), min_size=1, max_size=2 * PREEMPTIONS_MAX))
@settings(max_examples=20, deadline=None)
def test_no_request_is_preempted_more_often_whichever_agents_it_meets(visits: list[bool]) -> None:
    """Found with a request that was evicted 61 times: what came back from a swap began again at 0."""
    count, evictions = 0, 0
    for each in visits:
        noted = preempted(AgentSettings(visits=each), a_request("batch"), count)
        evictions += noted is not None
        assert noted in (None, count + 1)
        count = noted or count
    assert evictions == count == min(len(visits), PREEMPTIONS_MAX)


@pytest.mark.parametrize("lost", [0, 3])
def test_a_store_that_lost_the_count_gets_it_again(lost: int) -> None:
    bench = Bench(settings=SETTINGS)
    request = a_request("r", arrival_ns=bench.now_ns)
    running = leased(bench, request, 3)
    bench.agent.state.requests.all[request.id].claim.epoch = None
    bench.answer(request, replace(bench.granted(), preemptions=3 - lost))
    bench.send(DrainAsked())
    bench.send(GenerationEnded(call_id=running.call.call_id, finish="abort"))
    bench.later(2.0)
    entries = [entry for append in bench.take(Append) for entry in append.entries]
    assert [entry.extensions.preemptions for entry in entries] == ([3] if lost else [])
