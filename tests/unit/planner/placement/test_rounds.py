"""What an instance loses whose models take turns."""

from dataclasses import replace

import pytest

from qlm.domain.ids import InstanceId, ModelId
from qlm.planner.placement.problem import ModelDemand, ModelOnKind, PlacedInstance
from qlm.planner.placement.rounds import LONGEST_S, lost_share, turns

HOT, RARE = ModelId("hot"), ModelId("rare")
BOTH = {HOT: 1.0, RARE: 1.0}
INSTANCE = PlacedInstance(
    id=InstanceId("i"), kind="x", models=frozenset(BOTH), loaded=HOT, host_memory_bytes=100
)
ON_KIND = ModelOnKind(
    service_s=0.1, answer_s=1.0, recompute_s=0.0, warm_s=2.0, reload_s=6.0, cold_s=40.0, weights_bytes=1
)


def demand(*objectives: tuple[float, float], batch_rps: float = 0.0) -> ModelDemand:
    return ModelDemand(objectives=objectives, batch_rps=batch_rps, kinds={"x": ON_KIND})


def test_a_round_that_meets_all_slacks_loses_only_by_its_load() -> None:
    demands = {HOT: demand((50.0, 4.0)), RARE: demand((60.0, 1.0))}
    found = turns(INSTANCE, BOTH, demands)
    # Two swaps of 2 s in 0.8 * 50 s, besides the work of 5 requests per second.
    assert found.load == pytest.approx(0.5 + 4 / 40)
    assert found.lost_rps == pytest.approx(5.0 * lost_share(found.load))


def test_a_hot_model_with_a_tight_slack_resides_and_a_rare_one_is_visited() -> None:
    """Rounds of 0.8 * 2 s are all swaps; the hot model loses what comes during rare visits only."""
    demands = {HOT: demand((2.0, 4.0)), RARE: demand((100.0, 0.2))}
    found = turns(INSTANCE, BOTH, demands)
    assert found.load < 0.5
    assert found.lost_rps < 0.1 * 4.2


def test_idle_time_goes_to_the_model_that_gains_most_by_it() -> None:
    """The hot model can wait for a visit, the rare one is late unless it is awake."""
    demands = {HOT: demand((100.0, 4.0)), RARE: demand((2.0, 0.2))}
    found = turns(INSTANCE, BOTH, demands)
    idle = 1 - found.load
    assert found.lost_rps - 4.2 * lost_share(found.load) == pytest.approx(0.2 * (1 - idle), rel=0.1)


def test_models_with_tight_slacks_lose_less_apart() -> None:
    demands = {HOT: demand((2.0, 2.0)), RARE: demand((2.0, 2.0))}
    apart = sum(turns(INSTANCE, {model: 1.0}, demands).lost_rps for model in BOTH)
    together = turns(INSTANCE, BOTH, demands).lost_rps
    assert apart < 0.1 < 1.0 < together <= 4.0


def test_reloads_from_storage_lose_more_than_swaps_from_host_memory() -> None:
    demands = {HOT: demand((20.0, 4.0)), RARE: demand((20.0, 1.0))}
    small = replace(INSTANCE, host_memory_bytes=0)
    assert turns(small, BOTH, demands).lost_rps > turns(INSTANCE, BOTH, demands).lost_rps


@pytest.mark.parametrize("slack_s", [1e-3, 1.0, 10.0, 1e3, 1e6])
@pytest.mark.parametrize("rate_rps", [1e-3, 1.0, 30.0])
def test_no_more_is_lost_than_comes(slack_s: float, rate_rps: float) -> None:
    demands = {HOT: demand((slack_s, rate_rps), (2 * slack_s, 1.0)), RARE: demand((5.0, 1.0))}
    found = turns(INSTANCE, BOTH, demands)
    assert 0 <= found.lost_rps <= rate_rps + 2.0
    assert found.load >= 0.1 * (rate_rps + 2.0)


def test_batch_work_alone_takes_turns_in_the_longest_rounds() -> None:
    demands = {HOT: demand(batch_rps=1.0), RARE: demand(batch_rps=1.0)}
    assert turns(INSTANCE, BOTH, demands).load == pytest.approx(0.2 + 4 / LONGEST_S)
