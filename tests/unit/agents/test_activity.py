"""What the agent does, for the account of its time."""

import pytest

from qlm.agents.core.costs.engine_speed import EngineSpeed
from qlm.agents.core.costs.operation_costs import OperationCosts
from qlm.agents.core.events import EngineChanged, GenerationEnded, Progress, Pulled, QueueRead
from qlm.agents.core.state import AgentSettings
from qlm.agents.core.stats.activity import activity, waiting_here
from qlm.agents.core.stats.gpu_time import Activity, GpuUse
from qlm.domain.actions import Abort, Pull, SwapModel
from qlm.domain.fleet import EngineState
from qlm.domain.ids import GroupId, ModelId
from qlm.domain.virtual_queue import ClassForecast, VirtualQueue
from qlm.rct_estimator.host_memory import SwapCost
from support.agent_bench import HOLDER, Bench, M, N, S, group_of
from support.requests import a_request

COSTS = OperationCosts(
    swap=dict.fromkeys((M, N), SwapCost(weights_bytes=1, warm_s=2, cold_s=2)),
    speed=dict.fromkeys((M, N), EngineSpeed(token_s=0.001)),
)
VISITS = AgentSettings(visits=True)


def now(bench: Bench) -> Activity:
    state = bench.agent.state
    return activity(state, lambda: waiting_here(state), bench.now_ns)


def seconds(bench: Bench, use: GpuUse) -> float:
    bench.agent.account(bench.now_ns)
    return bench.agent.state.stats.gpu_time.ns[use] / S


def test_each_state_of_the_agent_has_its_use() -> None:
    bench = Bench(costs=COSTS)
    assert now(bench) == Activity(use=GpuUse.IDLE, model=M)
    running = bench.start(a_request("r"))
    assert now(bench).use is GpuUse.USEFUL
    bench.send(GenerationEnded(call_id=running.call.call_id, finish="stop"))
    bench.store_appends()
    assert now(bench).use is GpuUse.IDLE
    bench.queue(group_of(a_request("b", model=N), name="b"))
    assert (now(bench).use, now(bench).waiting) == (GpuUse.IDLE_LOADABLE, (N,))
    bench.later(0.2)
    assert bench.take(SwapModel)
    assert now(bench) == Activity(use=GpuUse.SWAP, model=N)
    bench.send(EngineChanged(model=N, state=EngineState.FAILED, error="no memory"))
    assert now(bench).use is GpuUse.DOWN


def test_the_seconds_of_an_agent_are_those_of_its_states() -> None:
    bench = Bench(costs=COSTS)
    bench.later(3.0)
    running = bench.start(a_request("r"))
    bench.later(5.0)
    bench.send(GenerationEnded(call_id=running.call.call_id, finish="stop"))
    bench.store_appends()
    account = bench.agent.state.stats.gpu_time
    assert seconds(bench, GpuUse.USEFUL) == 5.0
    assert seconds(bench, GpuUse.IDLE) == pytest.approx(3.0, abs=0.3)
    assert account.total_ns == bench.now_ns - S


def test_requests_on_their_way_wait_for_the_awake_model() -> None:
    bench = Bench(costs=COSTS)
    bench.queue(group_of(a_request("a"), name="a"))
    assert bench.take(Pull)
    assert now(bench) == Activity.idle(M, (M,), "requests are on their way")
    bench.send(Pulled(group=GroupId("a"), limit=1, messages=()))
    assert now(bench).why == "a pull came back short, or a swap is about to begin"


def test_work_for_a_failed_engine_is_no_work_until_its_pause_is_over() -> None:
    bench = Bench(costs=COSTS)
    bench.send(EngineChanged(model=N, state=EngineState.FAILED, error="no memory"))
    bench.queue(group_of(a_request("b", model=N), name="b"))
    assert now(bench).use is GpuUse.IDLE
    bench.now_ns = bench.agent.state.engines.failed_until_ns[N]
    assert now(bench).use is GpuUse.IDLE_LOADABLE


def test_a_resumed_request_computes_its_prompt_and_output_again() -> None:
    bench = Bench(costs=COSTS)
    request = a_request("r", max_tokens=500)
    running = bench.start(request, output=(7,) * 40)
    bench.later(10.0)
    again_s = 0.001 * (request.prompt_tokens + 40)
    assert seconds(bench, GpuUse.AGAIN) == pytest.approx(again_s)
    bench.send(Progress(chunks=((running.call.call_id, (7,)),)))
    bench.later(10.0)
    assert seconds(bench, GpuUse.AGAIN) == pytest.approx(again_s), "once"
    assert seconds(bench, GpuUse.USEFUL) == pytest.approx(20.0 - again_s)


def test_a_first_generation_computes_nothing_again() -> None:
    bench = Bench(costs=COSTS)
    bench.start(a_request("r"))
    bench.later(10.0)
    assert seconds(bench, GpuUse.AGAIN) == 0


def test_a_resumed_request_that_stops_before_its_first_token_is_not_counted_on() -> None:
    bench = Bench(costs=COSTS)
    bench.start(a_request("other", max_tokens=900))
    resumed = bench.start(a_request("r", max_tokens=900), output=(7,) * 800, name="h")
    bench.send(GenerationEnded(call_id=resumed.call.call_id, finish="abort"))
    bench.later(10.0)
    assert seconds(bench, GpuUse.AGAIN) == 0


def test_an_idle_visit_tells_what_it_compared() -> None:
    bench = Bench(costs=COSTS, settings=VISITS)
    own = ClassForecast(
        cls=a_request("own", deadline_ms=1000).cls, service_s=0.1, answer_s=5.0, rate_rps=50.0
    )
    group = group_of(a_request("u", model=N, deadline_ms=30_000, arrival_ns=bench.now_ns), 9, name="u")
    queue = VirtualQueue(instance=HOLDER.instance, groups=(group,), forecasts=(own,))
    bench.send(QueueRead(queue=queue))
    bench.later(0.3)
    why = now(bench).why
    assert why.startswith("idle for 0.") and "n would gain 9.45 objectives, " in why
    assert why.endswith("expected here would be missed")


def test_a_visit_that_ends_is_part_of_the_swap() -> None:
    bench = Bench(costs=COSTS, settings=VISITS)
    running = bench.start(a_request("batch", arrival_ns=bench.now_ns))
    due = a_request("u", model=N, deadline_ms=8000, arrival_ns=bench.now_ns)
    bench.queue(group_of(due, 50, name="u"))
    while not bench.take(Abort):
        bench.later(0.1)
    assert now(bench).use is GpuUse.USEFUL, "the engine still computes"
    bench.send(GenerationEnded(call_id=running.call.call_id, finish="abort"))
    assert now(bench) == Activity(use=GpuUse.SWAP, model=M)


def test_models_that_wait_elsewhere_decide_nothing() -> None:
    plain = Bench(costs=COSTS)
    informed = Bench(costs=COSTS, waiting=lambda: frozenset((M, ModelId("unknown"))))
    for bench in (plain, informed):
        bench.queue(group_of(a_request("b", model=N), name="b"))
        bench.later(0.05)
        bench.later(0.2)
    assert plain.actions == informed.actions
    assert seconds(plain, GpuUse.IDLE_LOADABLE) > 0 == seconds(plain, GpuUse.IDLE_AWAKE)
    assert seconds(informed, GpuUse.IDLE_AWAKE) > 0 == seconds(informed, GpuUse.IDLE_LOADABLE)
