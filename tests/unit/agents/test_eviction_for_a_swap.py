"""Who makes way before a model swap: all must be gone before anybody is served."""

from dataclasses import replace

import pytest

from qlm.agents.events import GenerationEnded
from qlm.agents.eviction import for_a_swap
from qlm.agents.held import Held
from qlm.agents.protocol import AgentSettings
from qlm.domain.actions import Abort, SwapModel
from qlm.domain.group import request_class
from qlm.domain.ids import ModelId
from qlm.domain.slo import BatchSlo, DeadlineSlo, Slo, TokenSlo
from support.agent_bench import Bench, N, S, delivery_of, group_of
from support.requests import a_request

NOW_NS = 1000 * S
STREAM = TokenSlo(ttft_ms=1000)


def held(name: str, slo: Slo, *, tokens: int = 0, priority: int = 0, arrival_s: float = 1000) -> Held:
    request = replace(
        a_request(name, arrival_ns=round(arrival_s * S)),
        slo=slo,
        cls=request_class(ModelId("m"), slo, priority),
    )
    made = Held(request=request, delivery=delivery_of(request), custody_ns=0, group=None)
    made.output = [7] * tokens
    return made


def going(*running: Held, due_s: float = 1005, priority: int = 0) -> set[str]:
    return {each.id for each in for_a_swap(running, head=(priority, due_s * S, 0), now_ns=NOW_NS)}


def test_streams_that_have_had_their_first_token_go_with_what_is_laxer() -> None:
    answered, waiting = held("answered", STREAM, tokens=3), held("waiting", STREAM)
    report, batch = held("report", DeadlineSlo(deadline_ms=60_000)), held("batch", BatchSlo())
    assert going(answered, waiting, report, batch) == {"answered", "report", "batch"}


def test_an_answered_stream_of_a_higher_priority_stays() -> None:
    assert going(held("vip", STREAM, tokens=3, priority=-1)) == set()
    assert going(held("vip", STREAM, tokens=3, priority=-1), priority=-1) == {"vip"}


def test_whole_answers_that_are_due_before_the_head_stay() -> None:
    assert going(held("due", DeadlineSlo(deadline_ms=2000), tokens=3)) == set()


def test_for_a_late_head_nobody_goes_who_may_yet_be_in_time() -> None:
    report, answered = held("report", DeadlineSlo(deadline_ms=60_000)), held("answered", STREAM, tokens=3)
    assert going(report, answered, held("batch", BatchSlo()), due_s=999) == {"answered", "batch"}


@pytest.mark.parametrize(("last_s", "evicts"), [(40, False), (80, True)])
def test_nobody_is_evicted_for_a_group_all_of_which_is_late(last_s: float, evicts: bool) -> None:
    bench = Bench()
    bench.start(a_request("batch", max_tokens=1000))
    bench.agent.pace = bench.agent.pace.seen(tokens=10, elapsed_s=1.0)
    bench.later(99)
    late = a_request("late", model="n", deadline_ms=30_000, arrival_ns=40 * S)
    bench.queue(replace(group_of(late), last_arrival_ns=round(last_s * S)))
    bench.later(1)
    assert bool(bench.take(Abort)) == evicts


def test_a_late_group_gets_its_model_once_the_batch_has_run_out() -> None:
    bench = Bench()
    batch = bench.start(a_request("batch"))
    bench.later(99)
    late = a_request("late", model="n", deadline_ms=30_000, arrival_ns=40 * S)
    bench.queue(replace(group_of(late), last_arrival_ns=40 * S))
    bench.later(1)
    bench.send(GenerationEnded(call_id=batch.call.call_id, finish="stop"))
    bench.store_appends()
    assert bench.take(SwapModel)[1:] == [SwapModel(model=N)]


def test_batch_work_of_the_same_model_makes_room_for_what_is_late_by_a_little() -> None:
    bench = Bench(seqs_max=1, settings=AgentSettings(demotes=False))
    bench.start(a_request("batch", max_tokens=1000))
    bench.agent.pace = bench.agent.pace.seen(tokens=10, elapsed_s=1.0)
    bench.later(1)
    urgent = a_request("urgent", deadline_ms=50, arrival_ns=bench.now_ns - S // 10)
    bench.queue(replace(group_of(urgent, name="u"), last_arrival_ns=urgent.arrival_ns))
    assert bench.take(Abort)
