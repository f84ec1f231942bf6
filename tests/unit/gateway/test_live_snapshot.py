"""The snapshots of the live page: the plan as bars, progress since, queues and instances."""

from typing import Any

import pytest

from qlm.domain.fleet import EngineCapacity, EngineState, InstanceStatus
from qlm.domain.group import Group, request_class
from qlm.domain.ids import GroupId, InstanceId, ModelId, SessionId
from qlm.domain.lease import Holder
from qlm.domain.slo import DeadlineSlo
from qlm.domain.view import ClassView, ClusterView
from qlm.gateway.core.configured import ConfiguredInstance
from qlm.gateway.live.plan_chart import INTERVAL_SDS, host_used_bytes, plan_chart
from qlm.gateway.live.snapshot import classes_of, live_instances, live_queues, progress
from qlm.planner.published_plan import PublishedPlan
from qlm.planner.verify.referee import verify
from support.plans import random_plan, random_problem

M = ModelId("m0")
CLS = request_class(M, DeadlineSlo(deadline_ms=20_000), 0)


def published(seed: int) -> PublishedPlan:
    problem = random_problem(seed, groups=8, instances=3)
    return PublishedPlan(at_ms=1_000_000, problem=problem, plan=random_plan(problem, seed))


def group(name: str, count: int, pulled: int = 0, **more: Any) -> Group:
    return Group(id=GroupId(name), cls=more.pop("cls", CLS), seq=0, count=count, pulled=pulled, **more)


def view_of(*groups: Group, queued: int, instances: tuple[InstanceStatus, ...] = ()) -> ClusterView:
    return ClusterView(
        classes=(ClassView(cls=CLS, queued=queued, groups=groups),), instances=instances, queues=()
    )


@pytest.mark.parametrize("seed", range(5))
def test_bars_have_the_times_of_the_referee(seed: int) -> None:
    kept = published(seed)
    rows = {row.group: row for row in verify(kept.problem, kept.plan).rows}
    chart = plan_chart(kept, {})
    assert [lane["instance"] for lane in chart["lanes"]] == ["i0", "i1", "i2"]
    assert {
        lane["instance"]: tuple(bar["id"] for bar in lane["groups"]) for lane in chart["lanes"]
    } == kept.plan.queues
    for lane in chart["lanes"]:
        for bar in lane["groups"]:
            row = rows[GroupId(bar["id"])]
            half_s = INTERVAL_SDS * row.completion.var**0.5
            assert bar["end_s"] == pytest.approx(row.completion.mean, abs=1e-3)
            assert bar["end_late_s"] - bar["end_s"] == pytest.approx(half_s, abs=2e-3)
            assert bar["start_s"] <= bar["leaves_s"] <= bar["end_s"] <= bar["end_late_s"]
            assert (bar["deadline_s"] is None) == (row.deadline_s is None)
            assert bar["swap"] == row.swap
            assert bar["swap_s"] == pytest.approx(row.swap_s)


def test_a_bar_begins_where_the_one_before_has_left() -> None:
    kept = published(3)
    for lane in plan_chart(kept, {})["lanes"]:
        for before, after in zip(lane["groups"], lane["groups"][1:], strict=False):
            assert after["start_s"] >= before["leaves_s"] + after["swap_s"] - 2e-3


def test_sleeping_models_take_host_memory() -> None:
    kept = published(1)
    used = {each.id: host_used_bytes(kept.problem, each) for each in kept.problem.instances}
    expected = {each.id: 14 * len(each.warm_models) for each in kept.problem.instances}
    assert used == expected and any(used.values())
    assert {lane["instance"]: lane["host_used_bytes"] for lane in plan_chart(kept, {})["lanes"]} == used


def test_groups_have_the_class_that_they_have_now() -> None:
    kept = published(2)
    view = view_of(group("g0", 3), queued=3)
    bars = {bar["id"]: bar for lane in plan_chart(kept, classes_of(view))["lanes"] for bar in lane["groups"]}
    assert (bars["g0"]["slo_class"], bars["g0"]["late"]) == (CLS.slo, False)
    assert bars["g1"]["slo_class"] is None


def test_progress_names_only_what_differs_from_the_plan() -> None:
    kept = published(2)
    g0, g1 = kept.problem.groups[:2]
    same = group(g0.id, g0.requests)
    served = group(g1.id, g1.requests, pulled=1)
    fresh = group("new", 4)
    found = progress(view_of(same, served, fresh, queued=g0.requests + g1.requests + 5), (g0, g1))
    assert found == {
        "remaining": {g1.id: g1.requests - 1},
        "unplanned_groups": 1,
        "unplanned_requests": 6,  # 4 of the new group, one in no group, and one that has come back
    }
    assert progress(view_of(queued=0), (g0,))["remaining"] == {g0.id: 0}


def status(name: str, **more: Any) -> InstanceStatus:
    return InstanceStatus(
        holder=Holder(InstanceId(name), SessionId("s")), accelerator="A10", models=(M,), **more
    )


def test_instances_that_are_configured_but_away_are_listed() -> None:
    engine = EngineCapacity(kv_tokens=1000, block_tokens=16, seqs_max=8, context_tokens=4096)
    up = status(
        "b", active_model=M, engines=((M, EngineState.AWAKE),), capacity=engine, kv_used_tokens=250, running=2
    )
    configured = [
        ConfiguredInstance(id=InstanceId(name), accelerator="A10", models=(M,)) for name in ("a", "b")
    ]
    away, live = live_instances(view_of(queued=0, instances=(up,)), configured)["instances"]
    assert (away["id"], away["live"], away["kv_tokens"]) == ("a", False, None)
    assert (live["id"], live["live"], live["active_model"]) == ("b", True, M)
    assert (live["kv_used_tokens"], live["kv_tokens"], live["running"]) == (250, 1000, 2)


def test_queues_are_those_of_the_admin_api() -> None:
    fields = live_queues(view_of(group("g", 2), queued=2), (), 1.2345)
    assert (fields["classes"][0]["queued"], fields["finished_per_s"]) == (2, 1.23)
