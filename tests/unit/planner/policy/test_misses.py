from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchmarks.planner_problems import medium
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.policy.misses import MissedGroup, Reason, find_misses
from qlm.planner.problem import GroupTime, Instance, Kind, ModelCost, Plan, PlannedGroup, Problem
from qlm.planner.verify.referee import verify
from qlm.rct_estimator.normal import NOTHING, Normal

COST = ModelCost(weights_bytes=1, swap_warm_s=5.0, swap_cold_s=50.0, unload_s=1.0)


def group(
    id: str, deadline_s: float | None, *, model: str = "m", service_s: float = 10.0, priority: int = 0
) -> PlannedGroup:
    return PlannedGroup(
        id=GroupId(id),
        model=ModelId(model),
        requests=10,
        deadline_s=None if deadline_s is None else 100.0 + deadline_s,
        priority=priority,
        time={"a": GroupTime(service=Normal(service_s), tail=Normal(1.0))},
    )


def fleet(
    groups: Sequence[PlannedGroup], *, loaded: str = "m", busy: Normal = NOTHING, instances: int = 1
) -> Problem:
    one = Instance(id=InstanceId("i"), kind="a", loaded_model=ModelId(loaded), busy=busy)
    return Problem(
        now_s=100.0,
        kinds={"a": Kind(host_memory_bytes=10, models={ModelId("m"): COST, ModelId("n"): COST})},
        instances=tuple(replace(one, id=InstanceId(f"i{at}")) for at in range(instances)),
        groups=tuple(groups),
    )


def of(problem: Problem, *queues: str) -> dict[str, MissedGroup]:
    named = {f"i{at}": tuple(GroupId(id) for id in queue.split()) for at, queue in enumerate(queues)}
    plan = Plan(queues={InstanceId(id): queue for id, queue in named.items()})
    return {row.group: row for row in find_misses(problem, plan).rows}


def test_a_deadline_that_had_passed() -> None:
    row = of(fleet([group("g", -1.0)]), "g")["g"]
    assert row == MissedGroup(
        group=GroupId("g"),
        instance=InstanceId("i0"),
        requests=10,
        late_requests=10.0,
        reason=Reason.LATE_ON_ARRIVAL,
    )


def test_too_slow_even_alone() -> None:
    row = of(fleet([group("g", 4.5)]), "g")["g"]
    assert (row.late_requests, row.reason) == (7.0, Reason.TOO_SLOW)


def test_no_instance_free_in_time() -> None:
    assert of(fleet([group("g", 12.0)], busy=Normal(8.0)), "g")["g"].reason is Reason.NO_INSTANCE_FREE


def test_a_fast_kind_that_is_busy_is_not_too_slow() -> None:
    """It was passed over for its present work, although alone it would have been in time."""
    problem = fleet([group("g", 4.5)])
    quick = GroupTime(service=Normal(2.0), tail=Normal(1.0))
    subject = replace(
        problem,
        kinds={**problem.kinds, "b": problem.kinds["a"]},
        instances=(
            *problem.instances,
            Instance(id=InstanceId("i1"), kind="b", loaded_model=ModelId("m"), busy=Normal(30.0)),
        ),
        groups=tuple(replace(each, time={**each.time, "b": quick}) for each in problem.groups),
    )
    assert of(subject, "g", "")["g"].reason is Reason.NO_INSTANCE_FREE


def test_a_swap_that_takes_too_long() -> None:
    assert of(fleet([group("g", 12.0)], loaded="n"), "g")["g"].reason is Reason.SWAP_NEEDED


def test_more_urgent_work_ahead() -> None:
    rows = of(fleet([group("first", 12.0), group("g", 14.0)]), "first g")
    assert set(rows) == {"g"}
    assert rows["g"].reason is Reason.MORE_URGENT_AHEAD


def test_higher_priority_ahead() -> None:
    rows = of(fleet([group("first", None), group("g", 14.0, priority=1)]), "first g")
    assert rows["g"].reason is Reason.HIGHER_PRIORITY_AHEAD


def test_sacrificed_for_less_in_total() -> None:
    rows = of(fleet([group("later", 15.0), group("g", 12.0)]), "later g")
    assert rows["g"].reason is Reason.SACRIFICED


def test_another_instance_that_would_have_done_makes_it_a_sacrifice() -> None:
    problem = fleet([group("first", 11.0), group("g", 14.0), group("none", None)], instances=2)
    assert of(problem, "first g", "none")["g"].reason is Reason.SACRIFICED
    assert of(problem, "first", "g none") == {}


def test_groups_that_run_nowhere_are_late_in_full() -> None:
    nowhere = replace(group("g", 1000.0), time={})
    problem = fleet([nowhere, replace(nowhere, id=GroupId("h"), deadline_s=None)])
    plan = Plan(queues={InstanceId("i0"): ()}, unplaceable=(GroupId("g"), GroupId("h")))
    (row,) = find_misses(problem, plan).rows
    assert (row.group, row.instance, row.late_requests, row.reason) == ("g", None, 10.0, Reason.UNPLACEABLE)


def test_all_misses_of_a_plan_are_named_most_first() -> None:
    problem = medium(3, 60)
    plan = plan_edf(problem)
    all_of_them = len(problem.groups)
    found = find_misses(problem, plan, late_requests_min=0.0, groups_max=all_of_them)
    rows = found.rows
    assert found.groups == len(rows)
    assert found.late_requests == pytest.approx(sum(row.late_requests for row in rows))
    assert sum(row.late_requests for row in rows) == pytest.approx(verify(problem, plan).late_requests)
    counts = [row.late_requests for row in rows]
    assert counts == sorted(counts, reverse=True)
    assert 0 < find_misses(problem, plan, late_requests_min=200.0).groups < len(rows)


def test_of_many_groups_the_first_are_explained_and_the_rest_counted() -> None:
    problem = medium(3, 60)
    plan = plan_edf(problem)
    whole, part = find_misses(problem, plan, groups_max=60), find_misses(problem, plan, groups_max=3)
    assert part == replace(whole, rows=whole.rows[:3])
    assert whole.groups > 3
    assert find_misses(problem, plan, groups_max=0).rows == ()
