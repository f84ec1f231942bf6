"""Best-effort requests keep no more places of a pool in the engine than can run at once."""

from qlm.agents.batching.pool import pool_of
from qlm.agents.core.events import GenerationEnded
from qlm.agents.core.state import AgentSettings
from qlm.domain.actions import Pull, Submit
from qlm.domain.ids import GroupId
from support.agent_bench import Bench, M, group_of
from support.requests import a_request

SLOTS = 4


def full_of_batch_work() -> tuple[Bench, list[Submit]]:
    """Return an agent whose engine has as much batch work as it has batch slots."""
    bench = Bench(seqs_max=SLOTS, kv_tokens=160_000, settings=AgentSettings(batching="unified"))
    calls = [bench.start(a_request(f"b{n}", model=M, max_tokens=50), name=f"b{n}") for n in range(SLOTS)]
    bench.take(Pull)
    return bench, calls


def test_no_more_batch_work_is_pulled_than_there_are_batch_slots() -> None:
    bench, calls = full_of_batch_work()
    bench.queue(group_of(a_request("more", model=M), count=100, name="more"))
    assert not bench.take(Pull)
    bench.send(GenerationEnded(call_id=calls[0].call.call_id, finish="stop"))
    bench.store_appends()
    assert [(pull.group, pull.limit) for pull in bench.take(Pull)] == [(GroupId("more"), 1)]


def test_requests_with_objectives_behind_batch_work_fill_the_rest_of_the_pool() -> None:
    bench, _ = full_of_batch_work()
    batch = group_of(a_request("more", model=M), count=100, name="more")
    due = a_request("due", model=M, deadline_ms=60_000, arrival_ns=bench.now_ns)
    bench.queue(batch, group_of(due, count=5000, name="due"))
    (pull,) = bench.take(Pull)
    room = pool_of("unified", bench.capacity)
    assert (pull.group, pull.limit) == (GroupId("due"), min(room, bench.agent.state.settings.pull_max))


def test_batch_work_of_another_model_is_not_passed_over() -> None:
    bench, _ = full_of_batch_work()
    mine = group_of(a_request("mine", model=M), count=100, name="mine")
    bench.queue(mine, group_of(a_request("other", model="n"), count=9, name="other"))
    head = bench.agent.state.queue.group(bench.now_ns)
    assert head is not None and head.id == GroupId("other")
