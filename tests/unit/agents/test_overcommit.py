"""Overcommit: a large engine gets more best-effort requests than slots, so that no slot is empty."""

from qlm.agents.core.events import GenerationEnded
from qlm.domain.actions import Abort, Pull
from support.agent_bench import Bench, group_of
from support.requests import a_request


def _full() -> Bench:
    """Return an agent with 64 slots, filled by batch work, and two more requests queued in the engine."""
    bench = Bench(seqs_max=64, kv_tokens=64_000)
    for n in range(66):
        bench.start(a_request(f"batch-{n}", max_tokens=1000))
    return bench


def test_two_requests_are_queued_in_an_engine_of_64_slots_and_count_as_waiting() -> None:
    bench = _full()
    bench.queue(group_of(a_request("next")))
    assert not bench.take(Pull)
    assert bench.agent.status().running == 64


def test_no_overcommit_soon_after_slo_bound_work() -> None:
    bench = Bench(seqs_max=64, kv_tokens=64_000)
    bench.start(a_request("timed", deadline_ms=600_000))
    for n in range(63):
        bench.start(a_request(f"batch-{n}", max_tokens=1000))
    bench.queue(group_of(a_request("next")))
    assert not bench.take(Pull)
    bench.later(5.0)
    assert [pull.limit for pull in bench.take(Pull)] == [1]


def test_a_small_batch_is_filled_exactly() -> None:
    bench = Bench(seqs_max=31, kv_tokens=64_000)
    for n in range(31):
        bench.start(a_request(f"batch-{n}"))
    bench.queue(group_of(a_request("next")))
    assert not bench.take(Pull)


def test_urgent_work_preempts_the_overcommitted_requests_too() -> None:
    bench = _full()
    bench.at_pace(token_s=0.1, service_s=10)
    bench.queue(group_of(a_request("urgent", deadline_ms=2000, arrival_ns=bench.now_ns), name="u"))
    assert sum(len(abort.call_ids) for abort in bench.take(Abort)) == 3


def test_no_overcommit_while_preempted_requests_wait_for_a_slot() -> None:
    bench = _full()
    bench.at_pace(token_s=0.1, service_s=10)
    urgent = a_request("urgent", deadline_ms=2000, arrival_ns=bench.now_ns, max_tokens=1000)
    bench.queue(group_of(urgent, name="u"))
    for abort in bench.take(Abort):
        for call_id in abort.call_ids:
            bench.send(GenerationEnded(call_id=call_id, finish="abort"))
    bench.store_appends()
    bench.take(Pull)
    bench.deliver(urgent, name="u")
    assert bench.agent.state.requests.ready
    bench.later(5.0)
    bench.queue(group_of(a_request("next", arrival_ns=bench.now_ns), count=500))
    assert not bench.take(Pull)
