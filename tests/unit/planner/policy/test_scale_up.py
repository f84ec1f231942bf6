from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchmarks.planner_problems import medium
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.methods import missing_instances
from qlm.planner.policy.scale_up import (
    ADDED_MAX,
    PLANS_MAX,
    REPAIRED_SHARE,
    Advice,
    advise,
    as_loaded,
    enlarged,
    late_requests,
)
from qlm.planner.problem import GroupTime, Instance, Kind, ModelCost, Plan, PlannedGroup, Problem, ScaleUp
from qlm.rct_estimator.normal import NOTHING, Normal


def cost(weights_bytes: int = 1) -> ModelCost:
    return ModelCost(weights_bytes=weights_bytes, swap_warm_s=5.0, swap_cold_s=50.0)


def group(id: str, deadline_s: float | None, *, model: str = "m", **service_s: float) -> PlannedGroup:
    return PlannedGroup(
        id=GroupId(id),
        model=ModelId(model),
        requests=10,
        deadline_s=deadline_s,
        time={kind: GroupTime(service=Normal(s), tail=Normal(1.0)) for kind, s in service_s.items()},
    )


def problem(groups: Sequence[PlannedGroup], models: dict[str, str]) -> Problem:
    kinds = {
        kind: Kind(host_memory_bytes=10, models={ModelId(m): cost() for m in names.split()})
        for kind, names in models.items()
    }
    fleet = [
        Instance(id=InstanceId(f"i-{kind}"), kind=kind, loaded_model=ModelId(names.split()[0]))
        for kind, names in models.items()
    ]
    return Problem(now_s=0.0, kinds=kinds, instances=tuple(fleet), groups=tuple(groups))


def advice(of: Problem) -> Advice:
    return advise(of, plan_edf(of), plan_edf)


def test_nothing_is_added_where_nothing_is_missed() -> None:
    fine = advice(problem([group("g", 30.0, a=10.0)], {"a": "m"}))
    assert fine == Advice(
        late_requests=0.0, unrepairable_requests=0.0, late_after=0.0, scale_up=(), repairs=()
    )


def test_the_fewest_instances_are_found() -> None:
    # The instance serves two of them in 21 s; an added one loads for 5 s and serves one: 16 < 22 < 26.
    groups = [group(f"g{at}", 22.0, a=10.0) for at in range(6)]
    found = advice(problem(groups, {"a": "m"}))
    assert found.late_requests == pytest.approx(40.0, abs=2.0)
    assert found.unrepairable_requests == 0.0
    assert found.scale_up == (ScaleUp(kind="a", count=4),)
    assert found.repairs[0].at_least <= 4


def test_of_two_kinds_the_one_that_needs_fewer() -> None:
    groups = [group(f"g{at}", 22.0, a=10.0, b=5.0) for at in range(8)]
    found = advice(problem(groups, {"a": "m", "b": "m"}))
    counts = {each.kind: each.count for each in found.repairs}
    assert counts["b"] < counts["a"]
    assert found.scale_up == (ScaleUp(kind="b", count=counts["b"]),)


def test_models_of_different_kinds_need_both() -> None:
    groups = [group(f"a{at}", 22.0, a=10.0) for at in range(4)]
    groups += [group(f"b{at}", 22.0, model="n", b=10.0) for at in range(5)]
    found = advice(problem(groups, {"a": "m", "b": "n"}))
    assert found.scale_up == (ScaleUp(kind="a", count=2), ScaleUp(kind="b", count=3))


def test_what_is_late_alone_is_not_repaired() -> None:
    groups = [group("late", -5.0, a=10.0), group("slow", 6.0, a=10.0), group("fine", 100.0, a=10.0)]
    found = advice(problem(groups, {"a": "m"}))
    assert found.late_requests >= 15.0
    assert found.scale_up == ()
    assert found.unrepairable_requests == pytest.approx(found.late_requests, abs=0.3)


def test_groups_that_no_fleet_runs_stay_late() -> None:
    groups = [group("nowhere", 5.0, model="x", a=1.0), *(group(f"g{at}", 22.0, a=10.0) for at in range(3))]
    found = advice(problem(groups, {"a": "m"}))
    assert found.scale_up == (ScaleUp(kind="a", count=1),)
    assert found.late_requests == pytest.approx(10.0 + 9.0, abs=0.1)
    assert [found.unrepairable_requests, found.late_after] == pytest.approx([10.0, 10.0], abs=0.5)


def test_what_only_an_added_instance_runs_is_repaired() -> None:
    groups = [group("here", 30.0, a=10.0), *(group(f"n{at}", 30.0, model="n", b=10.0) for at in range(3))]
    both = problem(groups, {"a": "m", "b": "n"})
    left = replace(both, instances=both.instances[:1])
    found = advice(left)
    assert found.late_requests == pytest.approx(30.0)
    assert found.unrepairable_requests == pytest.approx(0.0, abs=0.1)
    assert found.late_after == pytest.approx(0.0, abs=0.5)
    assert found.scale_up == (ScaleUp(kind="b", count=2),)
    nothing = advise(left, plan_edf(left), plan_edf, ["a"])
    assert (nothing.scale_up, nothing.late_requests) == ((), found.late_requests)
    assert nothing.unrepairable_requests == nothing.late_after == pytest.approx(30.0)


def test_a_fleet_without_instances_is_advised_too() -> None:
    none = replace(problem([group("g", 30.0, a=10.0)], {"a": "m"}), instances=())
    assert advice(none).scale_up == (ScaleUp(kind="a", count=1),)


def test_added_instances_hold_what_fits_of_what_waits() -> None:
    start = problem([group("g", 5.0, a=1.0), group("h", 5.0, model="n", a=1.0)], {"a": "m n o p"})
    models = {ModelId("m"): cost(6), ModelId("n"): cost(5), ModelId("o"): cost(1)}
    start = replace(start, kinds={"a": replace(start.kinds["a"], models=models)})
    taken = replace(start.instances[0], id=InstanceId("added-a-1"))
    larger = enlarged(replace(start, instances=(taken,)), {"a": 2})
    assert [each.id for each in larger.instances] == ["added-a-1", "added-a-2", "added-a-3"]
    assert larger.instances[1].warm_models == ("m",)
    assert larger.instances[1].loaded_model is None


def test_what_is_advised_repairs_and_few_plans_are_made() -> None:
    drawn = medium(3, 60)
    plans: list[int] = []

    def counted(of: Problem) -> Plan:
        plans.append(len(of.instances))
        return plan_edf(of)

    found = advise(drawn, plan_edf(drawn), counted)
    assert len(plans) <= 1 + len(found.repairs) * (2 * PLANS_MAX + 4)
    assert max(plans) <= len(drawn.instances) + ADDED_MAX * len(found.repairs)
    larger = enlarged(drawn, {each.kind: each.count for each in found.scale_up})
    allowed = found.unrepairable_requests + REPAIRED_SHARE * sum(
        g.requests for g in drawn.groups if g.deadline_s is not None
    )
    assert late_requests(larger, plan_edf(larger)) <= allowed < found.late_requests


@pytest.mark.parametrize("loaded", [ModelId("m"), None])
def test_instances_that_still_load_are_not_asked_for_again(loaded: ModelId | None) -> None:
    """Their loading takes longer than the deadline; that of more would take as long."""
    groups = [group(f"g{at}", 22.0, a=10.0) for at in range(6)]
    before = problem(groups, {"a": "m"})
    busy = NOTHING if loaded is None else Normal(50.0)
    new = tuple(
        Instance(id=InstanceId(f"new-{at}"), kind="a", loaded_model=loaded, busy=busy) for at in range(4)
    )
    joined = replace(before, instances=(*before.instances, *new))
    assert advice(joined).scale_up == (ScaleUp(kind="a", count=4),)
    assert missing_instances(joined, plan_edf(joined)) == ()


def test_an_instance_whose_batch_is_full_is_no_more_ready_than_it_is() -> None:
    full = problem([group("g", 22.0, a=10.0)], {"a": "m"})
    running = replace(full.instances[0], busy=Normal(3.0), leave_s=2.0)
    problem_now = replace(full, instances=(running,))
    assert as_loaded(problem_now) is problem_now
