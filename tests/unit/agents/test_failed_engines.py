"""An engine that has failed is left alone for a while, and may serve again."""

import pytest

from qlm.agents.core.events import EngineChanged
from qlm.agents.core.stats.progress import FAILED_PAUSE_NS
from qlm.domain.fleet import EngineState
from support.agent_bench import Bench, M, N
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
