"""First come, first served."""

from dataclasses import replace

from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.baselines.fcfs import plan_fcfs
from qlm.planner.baselines.schedule import Schedule, ScheduleState
from qlm.planner.problem import GroupTime, Instance, Kind, ModelCost, PlannedGroup, Problem
from qlm.planner.swapping.swaps import Swaps
from qlm.rct_estimator.normal import Normal

A, B = ModelId("a"), ModelId("b")
COST = ModelCost(weights_bytes=1, swap_warm_s=2.0, swap_cold_s=40.0, unload_s=1.0)


def problem(*groups: tuple[str, ModelId, float], instances: int = 1) -> Problem:
    time = {"k": GroupTime(service=Normal(10.0), tail=Normal(1.0))}
    return Problem(
        now_s=0.0,
        move_s=0.0,
        kinds={"k": Kind(host_memory_bytes=100, models={A: COST, B: COST})},
        instances=tuple(
            Instance(id=InstanceId(f"i{n}"), kind="k", loaded_model=A, busy=Normal(0.0))
            for n in range(instances)
        ),
        groups=tuple(
            PlannedGroup(id=GroupId(name), model=model, requests=4, deadline_s=arrival_s, time=time)
            for name, model, arrival_s in groups
        ),
    )


def test_groups_are_served_in_order_of_arrival_whatever_their_model() -> None:
    mixed = problem(("z", A, -30.0), ("b", B, -20.0), ("a", A, -10.0))
    assert plan_fcfs(mixed).queues[InstanceId("i0")] == ("z", "b", "a")
    assert plan_edf(mixed).queues[InstanceId("i0")] != ("z", "b", "a"), "EDF would put the models together"


def test_the_next_group_goes_where_it_ends_first() -> None:
    plan = plan_fcfs(problem(("a", A, -30.0), ("b", A, -20.0), ("c", A, -10.0), instances=2))
    assert plan.queues == {InstanceId("i0"): ("a", "c"), InstanceId("i1"): ("b",)}


def test_what_a_lane_chooses_by_is_what_happens_then() -> None:
    mixed = problem(("z", A, -30.0), ("b", B, -20.0), ("a", A, -10.0))
    kind = mixed.kinds["k"]
    swaps = Swaps(kind)
    start = ScheduleState(3.0, 0.5, A, swaps.sleeping({}))
    schedule = Schedule(mixed.instances[0], kind, swaps, start)
    begins_s = {"z": 3.0, "b": 3.0 + 10.0 + 1.0 + 1.0 + 40.0, "a": 65.0 + 1.0 + 1.0 + 2.0}
    for place, group in enumerate(mixed.groups):
        assert schedule.ready_s(group.model, schedule.last) == begins_s[group.id]
        schedule.insert(place, group)
        assert schedule.last.end_s == begins_s[group.id] + 10.0 + 1.0


def test_priorities_count_for_nothing() -> None:
    mixed = problem(("z", A, -30.0), ("b", B, -20.0))
    first = replace(mixed, groups=(mixed.groups[0], replace(mixed.groups[1], priority=-1)))
    assert plan_fcfs(first).queues[InstanceId("i0")] == ("z", "b")
