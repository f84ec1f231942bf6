"""A large batch: of work without an objective more is submitted than it has places, so that none is empty."""

from qlm.agents.events import GenerationEnded
from qlm.domain.actions import Abort, Pull
from support.agent_bench import Bench, group_of
from support.requests import a_request


def _full() -> Bench:
    """64 places, filled by batch work; two more wait in the engine."""
    bench = Bench(seqs_max=64, kv_tokens=64_000)
    for n in range(66):
        bench.start(a_request(f"batch-{n}", max_tokens=1000))
    return bench


def test_two_wait_in_an_engine_of_64_places_and_count_as_waiting() -> None:
    bench = _full()
    bench.queue(group_of(a_request("next")))
    assert not bench.take(Pull)
    assert bench.agent.status().running == 64


def test_none_goes_ahead_soon_after_work_with_an_objective() -> None:
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


def test_urgent_work_evicts_those_who_would_take_its_place_too() -> None:
    bench = _full()
    bench.agent.pace = bench.agent.pace.seen(tokens=10, elapsed_s=1.0)
    bench.queue(group_of(a_request("urgent", deadline_ms=2000, arrival_ns=bench.now_ns), name="u"))
    assert sum(len(abort.call_ids) for abort in bench.take(Abort)) == 3


def test_none_is_pulled_to_go_ahead_of_evicted_requests_that_wait_for_a_place() -> None:
    bench = _full()
    bench.agent.pace = bench.agent.pace.seen(tokens=10, elapsed_s=1.0)
    urgent = a_request("urgent", deadline_ms=2000, arrival_ns=bench.now_ns, max_tokens=1000)
    bench.queue(group_of(urgent, name="u"))
    for abort in bench.take(Abort):
        for call_id in abort.call_ids:
            bench.send(GenerationEnded(call_id=call_id, finish="abort"))
    bench.store_appends()
    bench.take(Pull)
    bench.deliver(urgent, name="u")
    assert bench.agent.hands.staged
    bench.later(5.0)
    bench.queue(group_of(a_request("next", arrival_ns=bench.now_ns), count=500))
    assert not bench.take(Pull)
