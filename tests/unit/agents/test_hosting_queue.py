"""The pool of a batch policy that an agent hosts, beside its virtual queue and its engines."""

from dataclasses import replace

import pytest

from qlm.agents.batching.policies.registry import BY_ABORTS
from qlm.agents.batching.pool import LOOKAHEAD, pool_of
from qlm.agents.core.events import EngineChanged, LeaseAnswered, Pulled
from qlm.agents.core.state import AgentSettings
from qlm.domain.actions import (
    AcquireLease,
    Demote,
    Pull,
    PulledMessage,
    SwapModel,
)
from qlm.domain.fleet import EngineState
from qlm.domain.ids import GroupId, RequestId
from qlm.domain.ports.engine import EngineCall
from support.agent_bench import Bench, M, S, delivery_of, group_of
from support.hosting_bench import HostingBench, due, full
from support.requests import a_request


def test_engines_get_objectives_only_if_they_host_the_policy() -> None:
    def call(*, aborts: bool) -> EngineCall:
        settings = AgentSettings(batching="edf", aborts=aborts)
        return Bench(settings=settings).start(a_request("r", deadline_ms=60_000)).call

    assert call(aborts=False).objective is not None
    assert call(aborts=True).objective is None


@pytest.mark.parametrize("name", BY_ABORTS[1:])
def test_it_pulls_its_pool_and_not_more(name: str) -> None:
    bench = HostingBench(name, seqs_max=20, kv_tokens=100_000)
    pool = pool_of(name, bench.capacity, by_aborts=True)
    assert pool == max(pool_of(name, bench.capacity), LOOKAHEAD)
    request = a_request("r", deadline_ms=600_000, arrival_ns=bench.now_ns)
    bench.queue(group_of(request, 1000))
    came = 0
    while pulls := bench.take(Pull):
        for pull in pulls:
            messages = tuple(
                PulledMessage(delivery=delivery_of(each), request=each)
                for each in (replace(request, id=RequestId(f"r{came + n}")) for n in range(pull.limit))
            )
            came += pull.limit
            bench.send(Pulled(group=pull.group, limit=pull.limit, messages=messages))
            for lease in bench.take(AcquireLease):
                bench.log[lease.metadata.id] = []
                bench.send(LeaseAnswered(id=lease.metadata.id, answer=bench.granted()))
    assert came == 20 + pool
    running = 1 if name == "annealing" else 20  # the first came alone, and its batch is not over
    assert bench.agent.state.requests.kv.running == running
    assert bench.agent.status().parked == 20 + pool - running


def test_less_urgent_requests_of_the_pool_keep_no_place_from_the_head() -> None:
    bench = HostingBench("edf", seqs_max=1)
    bench.arrive(due("runs", 500, bench))
    bench.arrive(due("waits", 600, bench))
    later, sooner = due("later", 700, bench), due("sooner", 20, bench)
    bench.queue(group_of(later, name="later"))
    assert not bench.take(Pull), "the pool is full"
    bench.queue(group_of(sooner, name="sooner"))
    assert [pull.group for pull in bench.take(Pull)] == [GroupId("sooner")]


def test_late_requests_are_demoted_only_if_more_than_the_pool_wait() -> None:
    bench = full()
    bench.arrive(due("gone", 1, bench))
    bench.arrive(due("gone too", 2, bench))
    assert bench.aborted() == ["late"]
    bench.later(30.0)
    assert not bench.take(Demote) and bench.agent.state.requests.ready == 2
    bench.arrive(due("more", 0.5, bench, arrival_ns=bench.now_ns - 60 * S))
    bench.store_appends()
    assert len(bench.take(Demote)) == 1


def test_a_swap_begins_once_those_who_run_are_done_and_none_is_lost() -> None:
    bench = full()
    bench.arrive(due("waits", 900, bench))
    bench.at_pace(token_s=0.1, service_s=1.0)
    other = due("other", 3, bench, model="n", priority=-1)
    bench.queue(group_of(other, name="other"))
    bench.later(0.1)
    bench.later(2.0)
    assert sorted(bench.aborted()) == ["late", "soon"], "evicted for the other model"
    assert bench.ends("late", "abort") == [], "none starts before a head that cannot wait"
    bench.ends("soon", "abort")
    bench.later(0.2)
    bench.store_appends()
    assert [swap.model for swap in bench.take(SwapModel)][-1:] == ["n"]
    assert bench.agent.state.requests.all == {}


def test_requests_of_the_pool_are_served_before_a_swap_that_can_wait() -> None:
    bench = full()
    bench.arrive(due("waits", 900, bench))
    bench.queue(group_of(a_request("batch", model="n"), name="other"))
    bench.later(10.0)
    assert bench.aborted() == []
    assert bench.ends("late") == ["waits"]


def test_a_lost_engine_takes_what_runs_and_the_next_one_begins_anew() -> None:
    bench = full()
    bench.arrive(due("waits", 900, bench))
    bench.send(EngineChanged(model=M, state=EngineState.FAILED, error="gone"))
    bench.store_appends()
    assert bench.agent.state.requests.all == {}, "returned to the queue"
    bench.later(60.0)
    bench.awake(M)
    assert bench.arrive(due("new", 20, bench)) == ["new"]
    assert bench.policy.views[-1].ids == ("new",)
