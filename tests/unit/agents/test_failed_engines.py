"""An engine that has failed is left alone for a while, and may serve again."""

import pytest

from qlm.agents.core.agent import Agent
from qlm.agents.core.events import EngineChanged, Tick
from qlm.agents.core.state import AgentSettings
from qlm.agents.core.stats.progress import FAILED_PAUSE_NS
from qlm.domain.actions import SwapModel
from qlm.domain.fleet import EngineState
from qlm.domain.ids import InstanceId, ModelId, SessionId
from qlm.domain.lease import Holder
from support.agent_bench import Bench, M, N, group_of
from support.requests import a_request

PAUSE_S = FAILED_PAUSE_NS / 1e9


def state_of(bench: Bench) -> EngineState:
    return dict(bench.agent.status().engines)[N]


def fail(bench: Bench) -> None:
    """Let the second model's engine fail, and the first one serve."""
    bench.send(EngineChanged(model=N, state=EngineState.FAILED, error="it stands still"))


def test_one_beside_an_awake_engine_can_be_planned_for_again_after_a_pause() -> None:
    """Plans leave out failed ones. A model that failed on all instances was served by none any more."""
    bench = Bench(seqs_max=1)
    bench.start(a_request("r", model=M))
    fail(bench)
    assert state_of(bench) is EngineState.FAILED
    bench.later(PAUSE_S - 0.1)
    assert state_of(bench) is EngineState.FAILED
    bench.later(0.2)
    assert state_of(bench) is EngineState.COLD
    assert "it stands still" in bench.agent.status().error


@pytest.mark.parametrize("failures", [1, 2, 3, 4])
def test_each_failure_in_a_row_doubles_the_pause(failures: int) -> None:
    """A start that fails takes the accelerator from other models."""
    bench = Bench(seqs_max=1)
    for _ in range(failures):
        fail(bench)
    bench.later(PAUSE_S * 2 ** (failures - 1) - 0.1)
    assert state_of(bench) is EngineState.FAILED
    bench.later(0.2)
    assert state_of(bench) is EngineState.COLD


def test_a_good_start_ends_the_row() -> None:
    bench = Bench(seqs_max=1)
    for _ in range(4):
        fail(bench)
    bench.later(PAUSE_S * 8 + 0.1)
    bench.send(EngineChanged(model=N, state=EngineState.AWAKE, capacity=bench.capacity))
    fail(bench)
    bench.later(PAUSE_S + 0.1)
    assert state_of(bench) is EngineState.COLD


@pytest.mark.parametrize(("start_s", "pause_s"), [(0.5, PAUSE_S), (60.0, 240.0), (600.0, 1800.0)])
def test_the_pause_is_several_times_the_start_that_failed(start_s: float, pause_s: float) -> None:
    bench = Bench(seqs_max=1)
    bench.queue(group_of(a_request("n", model=N)))
    bench.later(1.0)
    assert bench.take(SwapModel)[-1].model == N
    bench.later(start_s)
    fail(bench)
    bench.later(pause_s - 0.1)
    assert state_of(bench) is EngineState.FAILED
    bench.later(0.2)
    assert state_of(bench) is not EngineState.FAILED


def test_an_engine_whose_accelerator_no_other_uses_starts_again_soon() -> None:
    agent = Agent(Holder(InstanceId("i"), SessionId("s")), "A10", [N], AgentSettings())
    for now_s in (0, 100, 200, 300):
        agent.receive(Tick(), now_s * 10**9)
        failed = EngineChanged(model=N, state=EngineState.FAILED, error="no memory")
        agent.receive(failed, (now_s + 60) * 10**9)
        early, later = (agent.receive(Tick(), (now_s + after_s) * 10**9) for after_s in (64, 66))
        assert [isinstance(each, SwapModel) for each in (*early, *later)].count(True) == 1
        assert any(isinstance(each, SwapModel) for each in later)


@pytest.mark.parametrize(("start_s", "starts"), [(1.0, []), (60.0, [M])])
def test_another_model_is_started_during_a_long_pause(start_s: float, starts: list[ModelId]) -> None:
    """It may take as long to start as a short one."""
    bench = Bench(seqs_max=1)
    bench.queue(group_of(a_request("n", model=N)))
    bench.later(1.0)
    assert bench.take(SwapModel)[-1].model == N
    bench.queue()
    bench.later(start_s)
    fail(bench)
    assert [swap.model for swap in bench.take(SwapModel)] == starts
