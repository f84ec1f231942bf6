from dataclasses import replace

import pytest

from benchmarks.planner_problems import medium
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.policy.admission import AdmissionClass, admission
from qlm.planner.problem import GroupTime, Instance, Kind, ModelCost, Plan, PlannedGroup, Problem
from qlm.planner.verify.referee import verify
from qlm.rct_estimator.normal import Normal

COST = ModelCost(weights_bytes=1, swap_warm_s=5.0, swap_cold_s=50.0, unload_s=1.0)
TIME = {"a": GroupTime(service=Normal(0.5, 0.25), tail=Normal(2.0, 1.0))}


def group(id: str, deadline_s: float | None, *, model: str = "m", priority: int = 0) -> PlannedGroup:
    return PlannedGroup(
        id=GroupId(id),
        model=ModelId(model),
        requests=10,
        deadline_s=None if deadline_s is None else 100.0 + deadline_s,
        priority=priority,
        time={"a": GroupTime(service=Normal(10.0, 4.0), tail=Normal(3.0, 2.0))},
    )


GROUPS = (group("soon", 30.0), group("later", 200.0), group("other", 300.0, model="n"), group("none", None))


BUSY = Normal(1.0, 1.0)


def instance(id: str, *, busy: Normal = BUSY) -> Instance:
    return Instance(
        id=InstanceId(id), kind="a", loaded_model=ModelId("m"), warm_models=(ModelId("n"),), busy=busy
    )


def problem(*instances: Instance, groups: tuple[PlannedGroup, ...] = GROUPS) -> Problem:
    kind = Kind(host_memory_bytes=10, models={ModelId("m"): COST, ModelId("n"): COST})
    return Problem(now_s=100.0, kinds={"a": kind}, instances=instances, groups=groups)


def plan(**queues: str) -> Plan:
    return Plan(queues={InstanceId(id): tuple(map(GroupId, ids.split())) for id, ids in queues.items()})


def cls(target_s: float | None, *, model: str = "m", priority: int = 0) -> AdmissionClass:
    return AdmissionClass(model=ModelId(model), target_s=target_s, priority=priority, time=TIME)


ONE = problem(instance("i"))
QUEUE = plan(i="soon later other none")


@pytest.mark.parametrize(
    ("wanted", "completion"),
    [
        (cls(10.0), Normal(1.0 + 2.5, 1.0 + 1.25)),
        (cls(30.0), Normal(1.0 + 10.0 + 2.5, 1.0 + 4.0 + 1.25)),
        (cls(250.0), Normal(1.0 + 20.0 + 2.5, 1.0 + 8.0 + 1.25)),
        (cls(250.0, model="n"), Normal(1.0 + 20.0 + 3.0 + 6.0 + 2.5, 1.0 + 8.0 + 2.0 + 1.25)),
        (cls(400.0, model="n"), Normal(1.0 + 20.0 + 3.0 + 6.0 + 10.0 + 2.5, 1.0 + 8.0 + 2.0 + 4.0 + 1.25)),
        (cls(10.0, priority=-1), Normal(1.0 + 2.5, 1.0 + 1.25)),
        (
            cls(10.0, priority=1),
            Normal(1.0 + 20 + 3 + 6 + 10 + 3 + 6 + 10 + 2.5, 1.0 + 8 + 2 + 4 + 2 + 4 + 1.25),
        ),
    ],
)
def test_a_request_starts_behind_all_that_is_as_urgent(wanted: AdmissionClass, completion: Normal) -> None:
    (signal,) = admission(ONE, QUEUE, [wanted])
    assert signal.completion is not None
    assert signal.completion.mean == pytest.approx(completion.mean)
    assert signal.completion.var == pytest.approx(completion.var)
    assert wanted.target_s is not None
    assert signal.p_met == pytest.approx(completion.at_most(wanted.target_s))


def test_it_is_what_the_referee_says_of_a_plan_with_the_request_in_it() -> None:
    new = replace(group("new", 250.0, model="n"), requests=1, time=TIME)
    with_it = problem(instance("i"), groups=(*GROUPS, new))
    row = verify(with_it, plan(i="soon later new other none")).rows[2]
    (signal,) = admission(ONE, QUEUE, [cls(250.0, model="n")])
    assert signal.completion is not None
    assert row.group == "new"
    assert signal.completion.mean == pytest.approx(row.completion.mean)
    assert signal.completion.var == pytest.approx(row.completion.var)
    assert signal.p_met == pytest.approx(row.p_met)


def test_the_best_instance_is_taken() -> None:
    two = problem(instance("i"), instance("j", busy=Normal(5.0)))
    signals = admission(two, plan(i="soon later other none", j=""), [cls(10.0), cls(30.0), cls(None)])
    assert [each.instance for each in signals] == ["i", "j", "j"]
    assert signals[2].p_met == 1.0


def test_without_a_target_it_starts_behind_all() -> None:
    (signal,) = admission(ONE, QUEUE, [cls(None)])
    assert signal.completion is not None
    assert signal.completion.mean == pytest.approx(1.0 + 20 + 3 + 6 + 10 + 3 + 6 + 10 + 2.5)


def test_a_model_that_runs_nowhere_is_never_met() -> None:
    (signal,) = admission(ONE, QUEUE, [cls(None, model="x")])
    assert (signal.instance, signal.completion, signal.p_met) == (None, None, 0.0)


def test_times_come_from_what_waits_for_the_model() -> None:
    unknown = AdmissionClass(model=ModelId("n"), target_s=10.0, priority=-1)
    (signal,) = admission(ONE, QUEUE, [unknown])
    assert signal.completion is not None
    assert signal.completion.mean == pytest.approx(1.0 + 6.0 + 10.0 / 10 + 3.0)
    assert signal.completion.var == pytest.approx(1.0 + 4.0 / 10 + 2.0)


def test_longer_targets_never_end_sooner() -> None:
    drawn = medium(5, 80)
    edf = plan_edf(drawn)
    for model in sorted({each.model for each in drawn.groups}):
        targets = (1.0, 10.0, 100.0, 1000.0, None)
        signals = admission(drawn, edf, [AdmissionClass(model=model, target_s=t) for t in targets])
        ends = [each.completion.mean for each in signals if each.completion is not None]
        assert len(ends) == len(targets)
        assert ends == sorted(ends)
