"""Times of model loads by the tier of the weights: host memory, storage into a live process, or nothing."""

from dataclasses import replace

import pytest

from qlm.controller.core.estimating.forecast import ForecastQuery, forecast
from qlm.controller.core.estimating.snapshot import Snapshot, take_snapshot
from qlm.controller.core.estimating.state import NOTHING_LEARNED, learn
from qlm.controller.core.fleet import Fleet
from qlm.controller.core.lanes import Lanes
from qlm.domain.fleet import EngineState, InstanceStatus
from qlm.domain.view import ClusterView
from qlm.planner.problem import Kind
from support.estimating import (
    COST,
    KIND,
    NOW_NS,
    OTHER,
    M,
    N,
    S,
    cluster,
    groups_of,
    instance,
    seen,
    steady_fleet,
    steady_profile,
)

RELOAD = replace(COST, swap_reload_s=12.0)
FLEET = Fleet(
    kinds={KIND: Kind(host_memory_bytes=10, models={M: RELOAD, N: RELOAD})},
    profiles={(model, KIND): steady_profile(16) for model in (M, N)},
)
TIERS = pytest.mark.parametrize(
    ("engine", "fleet", "load_s"),
    [
        (EngineState.ASLEEP, FLEET, RELOAD.swap_warm_s),
        (EngineState.UNLOADED, FLEET, RELOAD.swap_reload_s),
        (EngineState.UNLOADED, steady_fleet(16), COST.swap_cold_s),
        (EngineState.COLD, FLEET, RELOAD.swap_cold_s),
    ],
)


def view_of(status: InstanceStatus) -> ClusterView:
    return cluster(seen(OTHER), instances=(status,), queues={"gpu-0": groups_of(OTHER, 1)})


def awake_beside(engine: EngineState) -> ClusterView:
    """Return a cluster whose instance has model M awake, and N as given."""
    return view_of(replace(instance(), engines=((M, EngineState.AWAKE), (N, engine))))


def snapshots(fleet: Fleet, *views: tuple[float, ClusterView]) -> list[Snapshot]:
    state, found = NOTHING_LEARNED, []
    for at_s, view in views:
        now_ns = NOW_NS + round(at_s * S)
        state = learn(state, view, now_ns=now_ns, fleet=fleet)
        found.append(take_snapshot(view, now_ns=now_ns, fleet=fleet, state=state))
    return found


@TIERS
def test_a_load_takes_as_long_as_from_the_tier_in_which_it_began(
    engine: EngineState, fleet: Fleet, load_s: float
) -> None:
    sleeps = (M, EngineState.ASLEEP)
    starting = replace(instance(), active_model=None, engines=(sleeps, (N, EngineState.STARTING)))
    _, begun, later = snapshots(
        fleet, (0, awake_beside(engine)), (1, view_of(starting)), (2, view_of(starting))
    )
    left_s = [each.instances[starting.id].loading.mean for each in (begun, later)]
    assert left_s == pytest.approx([load_s, load_s - 1.0])


@TIERS
def test_a_swap_is_forecast_and_balanced_with_the_time_of_its_tier(
    engine: EngineState, fleet: Fleet, load_s: float
) -> None:
    view = awake_beside(engine)
    (now,) = snapshots(fleet, (0, view))
    (lane,) = Lanes(view, now.state.times, fleet).able(OTHER, ())
    assert lane.swap_s == pytest.approx(COST.unload_s + load_s)
    expected = forecast(now, ForecastQuery(cls=OTHER))
    assert expected is not None
    assert expected.wait.mean == pytest.approx(COST.unload_s + load_s, abs=2.0)
