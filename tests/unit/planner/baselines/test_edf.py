"""The EDF planner with same-model grouping."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.baselines import edf
from qlm.planner.baselines.edf import plan_edf, plan_edf_late_last
from qlm.planner.problem import GroupTime, Instance, Kind, ModelCost, PlannedGroup, Problem
from qlm.rct_estimator.normal import Normal

A, B, C = ModelId("a"), ModelId("b"), ModelId("c")
COST = ModelCost(weights_bytes=1, swap_warm_s=2.0, swap_cold_s=40.0, unload_s=1.0)
FAST = Kind(host_memory_bytes=100, models={A: COST, B: COST, C: COST})
SMALL = Kind(host_memory_bytes=100, models={A: COST})


def group(
    name: str, model: ModelId, deadline_s: float | None, service_s: float = 1.0, priority: int = 0
) -> PlannedGroup:
    times = {
        "fast": GroupTime(service=Normal(service_s), tail=Normal(0.5)),
        "small": GroupTime(service=Normal(2 * service_s), tail=Normal(1.0)),
    }
    return PlannedGroup(
        id=GroupId(name), model=model, requests=4, deadline_s=deadline_s, priority=priority, time=times
    )


def problem(
    *groups: PlannedGroup,
    fast: int = 1,
    small: int = 0,
    loaded: ModelId | None = A,
    queue: tuple[str, ...] = (),
    move_s: float = 0.0,
) -> Problem:
    kept = tuple(GroupId(g) for g in queue)
    instances = [
        Instance(id=InstanceId(f"fast-{i}"), kind="fast", loaded_model=loaded, queue=kept if i == 0 else ())
        for i in range(fast)
    ]
    instances += [
        Instance(id=InstanceId(f"small-{i}"), kind="small", loaded_model=loaded) for i in range(small)
    ]
    return Problem(
        now_s=0.0,
        kinds={"fast": FAST, "small": SMALL},
        instances=tuple(instances),
        groups=groups,
        move_s=move_s,
    )


def order(p: Problem, instance: str = "fast-0") -> list[str]:
    return list(plan_edf(p).queues[InstanceId(instance)])


def test_earlier_deadlines_go_first_and_batch_last() -> None:
    assert order(problem(group("x", A, None), group("y", A, 50.0), group("z", A, 20.0))) == ["z", "y", "x"]


def test_priority_goes_before_deadline() -> None:
    assert order(problem(group("x", A, 5.0), group("y", A, 50.0, priority=-1))) == ["y", "x"]


def test_groups_of_one_model_stay_together_when_no_deadline_suffers() -> None:
    groups = (group("a1", A, 100.0), group("b1", B, 200.0), group("a2", A, 300.0))
    assert order(problem(*groups)) == ["a1", "a2", "b1"]


def test_a_group_passes_no_more_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = (group("a1", A, 100.0), group("b1", B, 200.0), group("b2", B, 250.0), group("a2", A, 300.0))
    assert order(problem(*groups)) == ["a1", "a2", "b1", "b2"]
    monkeypatch.setattr(edf, "PASSED_MAX", 1)
    assert order(problem(*groups)) == ["a1", "b1", "b2", "a2"]


def test_an_urgent_group_of_another_model_is_not_delayed_for_togetherness() -> None:
    groups = (group("a1", A, 100.0), group("b1", B, 44.0), group("a2", A, 300.0, service_s=60.0))
    assert order(problem(*groups)).index("b1") < order(problem(*groups)).index("a2")


def test_work_goes_where_it_ends_first() -> None:
    plan = plan_edf(problem(*(group(f"g{i}", A, 10.0 + i) for i in range(6)), fast=1, small=1))
    assert len(plan.queues[InstanceId("fast-0")]) == 4
    assert len(plan.queues[InstanceId("small-0")]) == 2


def test_a_model_that_runs_nowhere_is_said_to_be_unplaceable() -> None:
    plan = plan_edf(problem(group("x", ModelId("nowhere"), 5.0), group("y", A, 5.0)))
    assert plan.unplaceable == ("x",)
    assert plan.queues[InstanceId("fast-0")] == ("y",)


def test_a_group_moves_only_for_a_gain_larger_than_its_price() -> None:
    crowd = group("crowd", A, 1.0, service_s=3.0)
    settled = group("settled", A, 2.0)
    stay = problem(crowd, settled, fast=2, queue=("crowd", "settled"), move_s=10.0)
    go = problem(crowd, settled, fast=2, queue=("crowd", "settled"), move_s=1.0)
    assert order(stay) == ["crowd", "settled"]
    assert order(go, "fast-1") == ["settled"]


def test_an_empty_fleet_places_nothing() -> None:
    assert plan_edf(problem(group("x", A, 1.0), fast=0)).unplaceable == ("x",)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([A, B, C]), st.none() | st.floats(0, 500), st.floats(0.1, 20), st.integers(-1, 1)
        ),
        max_size=14,
    ),
    st.integers(0, 3),
    st.integers(0, 2),
    st.randoms(),
)
def test_every_group_is_placed_once_where_it_runs_whatever_the_input_order(
    rows: list[tuple[ModelId, float | None, float, int]], fast: int, small: int, rng: random.Random
) -> None:
    groups = [group(f"g{i}", m, d, t, priority=p) for i, (m, d, t, p) in enumerate(rows)]
    plan = plan_edf(problem(*groups, fast=fast, small=small))
    placed = [g for queue in plan.queues.values() for g in queue]
    assert sorted([*placed, *plan.unplaceable]) == sorted(g.id for g in groups)
    models = {g.id: g.model for g in groups}
    for instance, queue in plan.queues.items():
        if instance.startswith("small"):
            assert {models[g] for g in queue} <= {A}
    rng.shuffle(groups)
    assert plan_edf(problem(*groups, fast=fast, small=small)) == plan


def test_late_work_goes_last_where_agents_put_it_aside() -> None:
    """It is what is left when all that can be in time has gone."""
    waiting = problem(group("late", A, -29.0), group("fresh", A, 9.0), group("batch", A, None))
    (queue,) = plan_edf(waiting).queues.values()
    assert queue[0] == "late"
    (queue,) = plan_edf_late_last(waiting).queues.values()
    assert queue[0] == "fresh" and set(queue) == {"late", "fresh", "batch"}
