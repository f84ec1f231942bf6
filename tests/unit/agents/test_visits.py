"""The agent under the rule of visits: what it begins, whom it evicts, and when it swaps."""

from dataclasses import replace

import pytest

from qlm.agents.core.agent import Agent
from qlm.agents.core.costs.operation_costs import OperationCosts
from qlm.agents.core.events import EngineChanged, GenerationEnded, Pulled, QueueRead, Tick
from qlm.agents.core.scheduling.visits.decision import LEAST_VISIT_SWAPS
from qlm.agents.core.state import AgentSettings
from qlm.domain.actions import Abort, Pull, PulledMessage, Return, Submit, SwapModel
from qlm.domain.fleet import EngineState
from qlm.domain.group import Group
from qlm.domain.ids import GroupId, ModelId
from qlm.domain.request import Request
from qlm.domain.virtual_queue import ClassForecast, VirtualQueue
from qlm.rct_estimator.host_memory import SwapCost
from support.agent_bench import HOLDER, Bench, M, N, S, delivery_of, group_of
from support.requests import a_request

SETTINGS = AgentSettings(visits=True)
SWAP_S = 2.0
COSTS = OperationCosts(
    swap=dict.fromkeys((M, N), SwapCost(weights_bytes=1, warm_s=SWAP_S, reload_s=SWAP_S, cold_s=SWAP_S)),
    host_memory_bytes=1 << 40,
)


def forecast(request: Request, *, answer_s: float = 5.0, rate_rps: float = 0.0) -> ClassForecast:
    return ClassForecast(cls=request.cls, service_s=0.1, answer_s=answer_s, rate_rps=rate_rps)


def new_bench() -> Bench:
    bench = Bench(settings=SETTINGS, costs=COSTS)
    bench.take(SwapModel)  # to the first model, at the start
    return bench


def bench_with(*groups: Group, forecasts: tuple[ClassForecast, ...] = ()) -> Bench:
    bench = new_bench()
    read(bench, *groups, forecasts=forecasts)
    return bench


def read(
    bench: Bench,
    *groups: Group,
    forecasts: tuple[ClassForecast, ...] = (),
    homes: tuple[ModelId, ...] = (),
) -> None:
    queue = VirtualQueue(instance=HOLDER.instance, groups=groups, forecasts=forecasts, homes=homes)
    bench.send(QueueRead(queue=queue))


def several(request: Request, count: int, name: str, last_ns: int) -> Group:
    return replace(group_of(request, count, name), last_arrival_ns=last_ns)


def lease(bench: Bench, request: Request, group: str) -> None:
    message = PulledMessage(delivery=delivery_of(request), request=request)
    bench.send(Pulled(group=GroupId(group), limit=1, messages=(message,)))
    bench.answer(request, bench.granted())


def seconds_until_swap(bench: Bench, limit_s: float = 60.0) -> float:
    began_ns = bench.now_ns
    while not bench.take(SwapModel):
        if (bench.now_ns - began_ns) / S > limit_s:
            return float("inf")
        bench.later(0.1)
    return (bench.now_ns - began_ns) / S


def test_no_request_is_evicted_before_the_latest_moment_and_all_are_at_it() -> None:
    bench = new_bench()
    running = bench.start(a_request("batch", arrival_ns=bench.now_ns))
    due = a_request("u", model="n", deadline_ms=30_000, arrival_ns=bench.now_ns)
    read(bench, several(due, 20, "u", bench.now_ns), forecasts=(forecast(due),))
    began_ns = bench.now_ns
    while not bench.take(Abort):
        bench.later(0.1)
        assert bench.now_ns - began_ns < 60 * S
    waited_s = (bench.now_ns - began_ns) / S
    # 30 s, less the swap, the margin of 3 s, and the 2 s in which it decides.
    assert waited_s == pytest.approx(30 - SWAP_S - 3 - 2, abs=1.5)
    bench.send(GenerationEnded(call_id=running.call.call_id, finish="abort"))
    bench.store_appends()
    assert [each.evicted for each in bench.take(Return)] == [True]
    assert [swap.model for swap in bench.take(SwapModel)] == [N]


def test_what_would_not_end_before_it_is_not_begun() -> None:
    bench = new_bench()
    long, short = a_request("long", deadline_ms=600_000), a_request("short", deadline_ms=500_000)
    due = a_request("u", model="n", deadline_ms=30_000, arrival_ns=bench.now_ns)
    groups = (group_of(long, name="l"), group_of(short, name="s"), group_of(due, 20, name="u"))
    sent = (forecast(long, answer_s=100.0), forecast(short, answer_s=3.0), forecast(due))
    read(bench, *groups, forecasts=sent)
    assert [pull.group for pull in bench.take(Pull)] == ["s"]


def test_a_request_that_is_not_begun_holds_up_no_other() -> None:
    """All behind it waited beside free slots, and more of its group was pulled all the time."""
    bench = new_bench()
    bench.start(a_request("running", arrival_ns=bench.now_ns))
    bench.later(LEAST_VISIT_SWAPS * SWAP_S)
    long = a_request("long", deadline_ms=600_000, arrival_ns=bench.now_ns)
    short = a_request("short", arrival_ns=bench.now_ns)
    due = a_request("u", model="n", deadline_ms=30_000, arrival_ns=bench.now_ns)
    sent = (forecast(long, answer_s=100.0), forecast(short, answer_s=3.0), forecast(due))
    read(bench, group_of(long, name="l"), forecasts=sent)
    assert [pull.group for pull in bench.take(Pull)] == ["l"]
    read(bench, group_of(short, name="s"), several(due, 20, "u", bench.now_ns), forecasts=sent)
    lease(bench, long, "l")
    assert not bench.take(Submit)
    assert [pull.group for pull in bench.take(Pull)] == ["s"]
    lease(bench, short, "s")
    assert [submit.id for submit in bench.take(Submit)] == ["short"]


def test_without_other_models_everything_is_begun() -> None:
    long = a_request("long")
    bench = bench_with(group_of(long, name="l"), forecasts=(forecast(long, answer_s=1e5),))
    assert [pull.group for pull in bench.take(Pull)] == ["l"]


def test_an_idle_agent_swaps_to_batch_work_of_another_model_once_fewer_of_its_own_are_expected() -> None:
    """Away for two swaps, it would miss one in ten of those that come, less and less likely ones.

    The work is worth the more, the longer it has waited.
    """
    own = forecast(a_request("own", deadline_ms=round(1950 * SWAP_S)), rate_rps=5.0)
    pauses_s = []
    for weight, waited_s in ((0.0, 300), (SETTINGS.late_weight, 100), (SETTINGS.late_weight, 300)):
        bench = Bench(settings=replace(SETTINGS, late_weight=weight), costs=COSTS)
        bench.take(SwapModel)
        waits = a_request("b", model="n", arrival_ns=bench.now_ns - waited_s * S)
        read(bench, group_of(waits, name="b"), forecasts=(own,))
        pauses_s.append(seconds_until_swap(bench))
    assert pauses_s == pytest.approx([7.2, 3.7, 0.8], abs=0.8)


@pytest.mark.parametrize(("late_weight", "pause_s"), [(SETTINGS.late_weight, 63.0), (0.0, 319.0)])
def test_late_requests_of_a_model_that_no_agent_starts_count_as_late_ones(
    late_weight: float, pause_s: float
) -> None:
    """Found in a drawn scenario: three agents were idle for ten minutes beside 11 late requests.

    Only what an agent would start is demoted. What waited for models that were awake nowhere was worth
    nothing, until next to no request was expected for the models that were. This one is worth 0.25
    objectives. An absence of two swaps misses 20 expected ones, at first.
    """
    bench = Bench(settings=replace(SETTINGS, late_weight=late_weight), costs=COSTS)
    bench.take(SwapModel)
    own = forecast(a_request("own", deadline_ms=2), rate_rps=5.0)
    late = a_request("late", model="n", deadline_ms=1, arrival_ns=bench.now_ns - 10 * S)
    read(bench, group_of(late, name="l"), forecasts=(own,))
    assert seconds_until_swap(bench, limit_s=400.0) == pytest.approx(pause_s, rel=0.05)


def test_an_idle_agent_swaps_at_once_if_nobody_else_is_expected() -> None:
    bench = bench_with(group_of(a_request("b", model="n"), name="b"))
    assert seconds_until_swap(bench) == pytest.approx(0.0, abs=0.5)


def test_a_request_that_has_just_begun_ends_the_idle_time() -> None:
    """Found in a drawn scenario: after a swap of 50 s the first requests ran for 0.1 s, and were evicted."""
    bench = new_bench()
    own = a_request("own", arrival_ns=bench.now_ns)
    read(bench, group_of(own, name="o"), group_of(a_request("b", model="n"), name="b"))
    lease(bench, own, "o")
    assert bench.take(Submit)
    for _ in range(4):
        bench.later(0.1)
    assert not bench.take(Abort)


def test_a_model_whose_engine_failed_is_no_candidate_until_its_pause_is_over() -> None:
    bench = new_bench()
    bench.send(EngineChanged(model=N, state=EngineState.FAILED, error="no memory"))
    read(bench, group_of(a_request("b", model="n"), name="b"))
    pause_s = (bench.agent.state.engines.failed_until_ns[N] - bench.now_ns) / S
    assert seconds_until_swap(bench) >= pause_s > 1


def test_once_decided_nothing_more_is_begun_and_a_late_pull_returns() -> None:
    bench = new_bench()
    own = a_request("own", deadline_ms=600_000, arrival_ns=bench.now_ns)
    due = a_request("u", model="n", deadline_ms=8_000, arrival_ns=bench.now_ns)
    read(bench, group_of(own, name="g"), group_of(due, 50, name="u"), forecasts=(forecast(due),))
    (pull,) = bench.take(Pull)
    while bench.agent.state.visit.leaving is None:
        bench.later(0.1)
    bench.send(Pulled(group=pull.group, limit=pull.limit, messages=()))
    assert [swap.model for swap in bench.take(SwapModel)] == [N]


@pytest.mark.parametrize("pinned", [True, False])
def test_a_decision_to_leave_is_taken_back_once_nothing_waits_there_unless_it_cost_an_eviction(
    pinned: bool,
) -> None:
    """While a pinned answer ended, nothing was begun; then the swap was for nothing."""
    bench = new_bench()
    request = a_request("long", arrival_ns=bench.now_ns)
    sampling = replace(request.sampling, frequency_penalty=0.5 if pinned else 0.0)
    running = bench.start(replace(request, sampling=sampling))
    own = group_of(a_request("own", deadline_ms=600_000, arrival_ns=bench.now_ns), name="own")
    urgent = a_request("u", model="n", priority=-1, deadline_ms=30_000, arrival_ns=bench.now_ns)
    read(bench, group_of(urgent, name="u"), own)
    assert bench.agent.state.visit.leaving and not bench.take(Pull)
    assert bool(bench.take(Abort)) is not pinned
    read(bench, own)
    assert bool(bench.take(Pull)) is pinned
    bench.send(GenerationEnded(call_id=running.call.call_id, finish="stop" if pinned else "abort"))
    bench.store_appends()
    assert [swap.model for swap in bench.take(SwapModel)] == ([] if pinned else [N])


def test_a_decision_to_leave_stands_while_a_request_waits_there() -> None:
    bench = new_bench()
    request = a_request("long", arrival_ns=bench.now_ns)
    running = bench.start(replace(request, sampling=replace(request.sampling, frequency_penalty=0.5)))
    own = group_of(a_request("own", deadline_ms=9000, arrival_ns=bench.now_ns), name="own")
    first = a_request("u", model="n", priority=-1, deadline_ms=30_000, arrival_ns=bench.now_ns)
    late = a_request("l", model="n", arrival_ns=bench.now_ns)
    read(bench, group_of(first, name="u"), own)
    read(bench, group_of(late, name="l"), own)
    assert bench.agent.state.visit.leaving and not bench.take(Pull)
    bench.send(GenerationEnded(call_id=running.call.call_id, finish="stop"))
    bench.store_appends()
    assert [swap.model for swap in bench.take(SwapModel)] == [N]


def test_a_new_visit_begins_with_the_model_that_wakes() -> None:
    bench = bench_with(group_of(a_request("b", model="n"), name="b"))
    seconds_until_swap(bench)
    bench.send(EngineChanged(model=M, state=EngineState.ASLEEP))
    bench.awake(N)
    visit = bench.agent.state.visit
    assert (visit.leaving, visit.awake_ns) == (None, bench.now_ns)
    assert [pull.group for pull in bench.take(Pull)] == ["b"]


def test_a_visit_counts_the_unloading_of_the_model_before_as_plans_do() -> None:
    """It was in plans only: agents took swaps for shorter than they were."""
    cost = SwapCost(weights_bytes=1, warm_s=2.0, reload_s=2.0, cold_s=2.0, unload_s=1.0)
    costs = OperationCosts(swap={M: cost, N: cost}, host_memory_bytes=1 << 40)
    assert costs.swap_ns({M: EngineState.AWAKE, N: EngineState.ASLEEP}) == {N: 3 * S}
    assert costs.swap_ns({M: EngineState.ASLEEP, N: EngineState.COLD}) == {M: 2 * S, N: 2 * S}


def test_an_idle_agent_begins_late_work_that_may_not_end_and_evicts_it_at_the_latest_moment() -> None:
    bench = new_bench()
    late = a_request("late", arrival_ns=bench.now_ns)
    due = a_request("u", model="n", deadline_ms=30_000, arrival_ns=bench.now_ns)
    groups = group_of(late, name="l"), several(due, 20, "u", bench.now_ns)
    read(bench, *groups, forecasts=(forecast(late, answer_s=1e5), forecast(due)))
    assert [pull.group for pull in bench.take(Pull)] == ["l"]


def test_an_idle_agent_starts_a_model_of_its_placement() -> None:
    """Found in a drawn scenario: two of eight instances never served the model that was given to them.

    Its start took longer than the objectives, so that no request went there.
    """
    bench = new_bench()
    read(bench, homes=(N,))
    assert seconds_until_swap(bench) == pytest.approx(1.0, abs=0.3)


@pytest.mark.parametrize("homes", [(), (M,), (N, M)])
def test_an_idle_agent_stays_with_a_model_of_its_placement(homes: tuple[ModelId, ...]) -> None:
    bench = new_bench()
    read(bench, homes=homes)
    assert seconds_until_swap(bench, limit_s=10.0) == float("inf")


def test_an_idle_agent_ignores_a_model_of_its_placement_that_it_does_not_serve() -> None:
    bench = new_bench()
    read(bench, homes=(ModelId("of an earlier configuration"),))
    assert seconds_until_swap(bench, limit_s=10.0) == float("inf")


def test_an_agent_with_work_does_not_leave_it_for_its_placement() -> None:
    bench = new_bench()
    running = bench.start(a_request("own"))
    read(bench, homes=(N,))
    assert seconds_until_swap(bench, limit_s=10.0) == float("inf")
    bench.send(GenerationEnded(call_id=running.call.call_id, finish="stop"))
    bench.store_appends()
    assert seconds_until_swap(bench) == pytest.approx(1.0, abs=0.3)


def test_a_home_whose_engine_failed_is_started_only_after_its_pause() -> None:
    bench = new_bench()
    bench.send(EngineChanged(model=N, state=EngineState.FAILED, error="no memory"))
    read(bench, homes=(N,))
    pause_s = (bench.agent.state.engines.failed_until_ns[N] - bench.now_ns) / S
    assert seconds_until_swap(bench) >= pause_s > 1


def test_the_first_engine_is_that_of_the_placement() -> None:
    agent = Agent(HOLDER, "A10", (M, N), SETTINGS, COSTS)
    homes = ModelId("of an earlier configuration"), N
    read = QueueRead(queue=VirtualQueue(instance=HOLDER.instance, homes=homes))
    actions = [*agent.receive(read, S), *agent.receive(Tick(), S)]
    assert [each.model for each in actions if isinstance(each, SwapModel)] == [N]
