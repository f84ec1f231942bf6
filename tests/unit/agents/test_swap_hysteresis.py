"""Hysteresis: deferrable work causes no model swap soon after SLO-bound work."""

from dataclasses import replace

import pytest

from qlm.agents.core.costs.operation_costs import OperationCosts
from qlm.agents.core.events import EngineChanged, GenerationEnded, Pulled
from qlm.agents.core.state import AgentSettings
from qlm.domain.actions import Pull, SetTimer, SwapModel
from qlm.domain.fleet import EngineState
from qlm.domain.ids import GroupId
from qlm.rct_estimator.host_memory import SwapCost
from support.agent_bench import Bench, M, N, S, group_of
from support.requests import a_request

COLD = OperationCosts(
    swap=dict.fromkeys((M, N), SwapCost(weights_bytes=1, process_bytes=1, warm_s=1, cold_s=40)),
    host_memory_bytes=1 << 40,
)
NO_MEMORY = replace(COLD, host_memory_bytes=0)


def after_timed_work(settings: AgentSettings | None = None, costs: OperationCosts | None = None) -> Bench:
    """Return an agent that has just answered a request with a deadline."""
    bench = Bench(settings=settings, costs=costs or OperationCosts())
    submit = bench.start(a_request("chat", deadline_ms=60_000, arrival_ns=bench.now_ns))
    bench.send(GenerationEnded(call_id=submit.call.call_id, finish="stop"))
    bench.store_appends()
    bench.take(SwapModel)
    return bench


def answer_a_chat(bench: Bench, name: str) -> None:
    """Answer a request of the awake model that has a deadline."""
    chat = bench.start(a_request(name, deadline_ms=60_000, arrival_ns=bench.now_ns))
    bench.send(GenerationEnded(call_id=chat.call.call_id, finish="stop"))
    bench.store_appends()


def test_batch_work_of_another_model_is_deferred_after_slo_bound_work() -> None:
    bench = after_timed_work()
    bench.queue(group_of(a_request("b", model="n"), name="b"))
    bench.later(1)
    assert not bench.take(SwapModel)
    bench.later(4)
    bench.later(0.2)
    assert [swap.model for swap in bench.take(SwapModel)] == ["n"]


def test_other_work_of_the_awake_model_is_served_meanwhile() -> None:
    bench = after_timed_work()
    other, own = a_request("b", model="n"), a_request("own")
    bench.queue(group_of(other, name="b"), group_of(own, name="g"))
    assert [pull.group for pull in bench.take(Pull)] == ["g"]
    assert not bench.take(SwapModel)


@pytest.mark.parametrize(("deadline_s", "waits_s"), [(5, 2.5), (60, 4)])
def test_work_with_a_deadline_is_deferred_for_half_of_it_at_most(deadline_s: float, waits_s: float) -> None:
    bench = after_timed_work()
    began_ns = bench.now_ns
    urgent = a_request("u", model="n", deadline_ms=1000 * deadline_s, arrival_ns=began_ns)
    bench.queue(group_of(urgent, name="u"))
    while not bench.take(SwapModel):
        bench.later(0.05)
    assert (bench.now_ns - began_ns) / S == pytest.approx(waits_s, abs=0.35)


def test_work_close_to_its_deadline_swaps_the_model_at_once() -> None:
    bench = after_timed_work()
    urgent = a_request("u", model="n", deadline_ms=5_000, arrival_ns=bench.now_ns - 3 * S)
    bench.queue(group_of(urgent, name="u"))
    bench.later(0.2)
    assert [swap.model for swap in bench.take(SwapModel)] == ["n"]


def test_without_slo_bound_work_the_plan_decides() -> None:
    bench = Bench()
    submit = bench.start(a_request("batch"))
    bench.take(SwapModel)
    bench.send(GenerationEnded(call_id=submit.call.call_id, finish="stop"))
    bench.store_appends()
    bench.queue(group_of(a_request("b", model="n"), name="b"), group_of(a_request("own"), name="g"))
    bench.later(0.2)
    assert [swap.model for swap in bench.take(SwapModel)] == ["n"]


def test_without_hysteresis_the_model_is_swapped_at_once() -> None:
    bench = after_timed_work(AgentSettings(swap_idle_s=0))
    bench.queue(group_of(a_request("b", model="n"), name="b"))
    bench.later(0.2)
    assert [swap.model for swap in bench.take(SwapModel)] == ["n"]


def test_batch_work_of_a_higher_priority_swaps_the_model_at_once() -> None:
    bench = after_timed_work()
    bench.queue(group_of(a_request("b", model="n", priority=-1), name="b"))
    bench.later(0.2)
    assert [swap.model for swap in bench.take(SwapModel)] == ["n"]


def test_a_timer_ends_the_deferral() -> None:
    bench = after_timed_work()
    bench.take(SetTimer)
    bench.queue(group_of(a_request("b", model="n"), name="b"))
    (timer,) = bench.take(SetTimer)
    assert bench.now_ns < timer.at_ns <= bench.now_ns + 4 * S


def swapped_after_s(bench: Bench, most_s: float) -> float:
    """Return the seconds until its model is swapped, following its timers for at most `most_s`."""
    began_ns = bench.now_ns
    while bench.now_ns - began_ns < most_s * S and not bench.take(SwapModel):
        bench.later(1.0)
    return (bench.now_ns - began_ns) / S


@pytest.mark.parametrize(
    ("due_s", "age_s", "waits_s"),
    [
        (5, 0, 80),  # no cold start can meet it: nobody may have come for as long as two of them take
        (60, 30, 80),
        (60, 0, 10),  # a cold start that begins by then can
        (300, 170, 0),  # half of its time is over
    ],
)
def test_an_engine_is_cold_started_for_a_deadline_it_can_meet(
    due_s: float, age_s: float, waits_s: float
) -> None:
    bench = after_timed_work(costs=COLD)
    urgent = a_request("u", model="n", deadline_ms=1000 * due_s, arrival_ns=bench.now_ns - round(age_s * S))
    bench.queue(replace(group_of(urgent, name="u"), last_arrival_ns=urgent.arrival_ns))
    assert swapped_after_s(bench, 200) == pytest.approx(waits_s, abs=2.1)


@pytest.mark.parametrize(
    ("costs", "waits_s"),
    [
        (COLD, 120),  # two minutes, and more than 2.5 times a cold start and a warm return
        (NO_MEMORY, 200),  # the return is a cold start, too
    ],
)
def test_a_deadline_that_no_cold_start_meets_gets_one_when_it_takes_little_of_the_time(
    costs: OperationCosts, waits_s: float
) -> None:
    bench = after_timed_work(costs=costs)
    urgent = a_request("u", model="n", deadline_ms=5_000, arrival_ns=bench.now_ns)
    group = replace(group_of(urgent, name="u"), last_arrival_ns=urgent.arrival_ns)
    for n in range(4):
        bench.later(waits_s / 4 - 0.1)
        assert not bench.take(SwapModel)
        answer_a_chat(bench, f"chat-{n}")
        bench.queue(group)
    assert swapped_after_s(bench, 200) == pytest.approx(0, abs=2.1)


@pytest.mark.parametrize("age_s", [0, 50, 1000])
def test_late_work_waits_as_long_as_a_deadline_that_no_swap_meets_and_no_longer(age_s: float) -> None:
    """Requests with deadlines come every 3 s. The age of late work counts from the last swap on."""
    bench = after_timed_work()
    began_ns = bench.now_ns
    late = a_request("late", model="n", deadline_ms=5_000, arrival_ns=began_ns - round(age_s * S))
    group = replace(group_of(late, name="late"), cls=late.cls.missed(), last_arrival_ns=late.arrival_ns)
    for n in range(60):
        bench.queue(group)
        bench.later(3)
        if bench.take(SwapModel):
            break
        answer_a_chat(bench, f"chat-{n}")
    assert (bench.now_ns - began_ns) / S == pytest.approx(122, abs=3)


def test_slo_bound_work_of_another_model_defers_nothing() -> None:
    swap = {
        M: SwapCost(weights_bytes=1, warm_s=1, cold_s=60),
        N: SwapCost(weights_bytes=1, warm_s=1, cold_s=1),
    }
    bench = after_timed_work(costs=OperationCosts(swap=swap))
    bench.queue(group_of(a_request("b", model="n"), name="b"))
    assert swapped_after_s(bench, 20) < 10
    bench.send(EngineChanged(model=M, state=EngineState.COLD))
    bench.awake(N)
    urgent = a_request("u", deadline_ms=30_000, arrival_ns=bench.now_ns)
    bench.queue(replace(group_of(urgent, name="u"), last_arrival_ns=urgent.arrival_ns))
    bench.send(Pulled(group=GroupId("b"), limit=1, messages=()))
    assert swapped_after_s(bench, 200) == pytest.approx(0, abs=2.1)
