"""A slowdown lasts as long as its fault says, whatever it meets: a start, a swap, or a long answer."""

import numpy as np
import pytest

from qlm.domain.ids import InstanceId
from qlm.simulator.scenario import Fault, KillInstance, SlowInstance, Workload
from qlm.simulator.seeds import Seeds
from support.simulation import SMALL, profiles, run, scenario

I0 = InstanceId("i0")
COLD_S = profiles()[SMALL, "A100"].swap_cold_s
RESTART_S = 0.5
BESIDE_S = 2.0
"""Most seconds beside the start: round trips, the next look at the queue, and the answer."""


def _one_request(output_tokens: int = 1) -> Workload:
    one = np.ones(1, dtype=np.int64)
    return Workload(
        arrival_ns=0 * one,
        model=0 * one,
        tenant=0 * one,
        slo_class=2 * one,
        prompt_tokens=100 * one,
        output_tokens=output_tokens * one,
        max_tokens=output_tokens * one,
    )


def _ended_s(*faults: Fault, output_tokens: int = 1) -> float:
    def make(seeds: Seeds) -> Workload:
        return _one_request(output_tokens)

    result = run(scenario(make, instances=1, faults=faults))
    assert result.outcomes.outcome == ["stop"]
    return float(result.outcomes.ended_ns[0]) / 1e9


def _restarted_s(slow: SlowInstance) -> float:
    """Return the end of a request that waits for the cold start of a killed instance."""
    return _ended_s(KillInstance(at_s=0.0, instance=I0, down_s=RESTART_S), slow)


def test_a_start_goes_on_at_full_speed_after_a_slowdown() -> None:
    slow = SlowInstance(at_s=0.0, instance=I0, for_s=10.0, factor=50.0)
    assert 10.0 + COLD_S - 1.0 < _restarted_s(slow) < 10.0 + COLD_S + BESIDE_S


def test_a_start_is_slow_from_when_the_slowdown_begins() -> None:
    slow = SlowInstance(at_s=RESTART_S + 10.0, instance=I0, for_s=1e6, factor=3.0)
    wanted_s = RESTART_S + 10.0 + 3.0 * (COLD_S - 10.0)
    assert _restarted_s(slow) == pytest.approx(wanted_s, abs=3 * BESIDE_S)


def test_an_answer_goes_on_at_full_speed_from_the_next_iteration() -> None:
    usual_s = _ended_s(output_tokens=200)
    slowed_s = _ended_s(
        SlowInstance(at_s=0.5, instance=I0, for_s=5.0, factor=100.0),
        output_tokens=200,
    )
    assert slowed_s < usual_s + 5.0 + 100 * usual_s / 200
