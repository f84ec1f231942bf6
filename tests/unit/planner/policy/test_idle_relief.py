"""Work for idle instances: who gets which group of another queue."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.policy import idle_relief
from qlm.planner.policy.idle_relief import relieve_idle
from qlm.planner.policy.replanning import Replanner
from qlm.planner.problem import GroupTime, Instance, Kind, ModelCost, Plan, PlannedGroup, Problem
from qlm.planner.verify.timeline import Served, timeline
from qlm.rct_estimator.normal import Normal

A, B = ModelId("a"), ModelId("b")
BUSY, IDLE, OTHER = InstanceId("busy"), InstanceId("idle"), InstanceId("other")
SWAP_S = 2.0
COST = ModelCost(weights_bytes=1, swap_warm_s=SWAP_S, swap_cold_s=30.0)


def group(
    name: str,
    model: ModelId,
    service_s: float,
    requests: int = 2,
    *,
    deadline_s: float | None = None,
    priority: int = 0,
) -> PlannedGroup:
    return PlannedGroup(
        id=GroupId(name),
        model=model,
        requests=requests,
        deadline_s=deadline_s,
        priority=priority,
        time={"x": GroupTime(service=Normal(service_s, 0.0), tail=Normal(5.0, 0.0))},
    )


def instance(id: InstanceId, *queue: str, busy_s: float = 0.0, leave_s: float = 0.0) -> Instance:
    return Instance(
        id=id,
        kind="x",
        loaded_model=A,
        warm_models=(B,),
        busy=Normal(busy_s, 0.0),
        leave_s=leave_s,
        queue=tuple(map(GroupId, queue)),
    )


def with_b_awake(one: Instance) -> Instance:
    return replace(one, loaded_model=B, warm_models=(A,))


def problem(groups: tuple[PlannedGroup, ...], *instances: Instance, move_s: float = 1.0) -> Problem:
    kind = Kind(host_memory_bytes=10, models={A: COST, B: COST})
    return Problem(now_s=0.0, move_s=move_s, kinds={"x": kind}, instances=instances, groups=groups)


def present(problem: Problem) -> Plan:
    return Plan(queues={each.id: each.queue for each in problem.instances})


LONG, LATE, LATER = group("long", A, 60.0), group("late", B, 4.0), group("later", B, 4.0)
GROUPS = (LONG, LATE, LATER)


def test_groups_that_would_start_sooner_go_to_the_idle_instance_together() -> None:
    subject = problem(GROUPS, instance(BUSY, "long", "late", "later"), instance(IDLE))
    relieved = relieve_idle(subject, present(subject))
    assert relieved.queues == {BUSY: ("long",), IDLE: ("late", "later")}


def test_of_two_idle_instances_one_swaps_to_the_model_and_the_other_takes_nothing_that_gains_nothing() -> (
    None
):
    subject = problem(GROUPS, instance(BUSY, "long", "late", "later"), instance(IDLE), instance(OTHER))
    relieved = relieve_idle(subject, present(subject))
    assert sorted(map(len, relieved.queues.values())) == [0, 1, 2]
    assert {queue for queue in relieved.queues.values() if queue} == {("long",), ("late", "later")}


@pytest.mark.parametrize("state", [{"busy_s": 3.0}, {"leave_s": 0.5}])
def test_an_instance_that_loads_or_runs_something_is_not_idle(state: dict[str, float]) -> None:
    subject = problem(GROUPS, instance(BUSY, "long", "late", "later"), instance(IDLE, **state))
    assert relieve_idle(subject, present(subject)) == present(subject)


def test_a_group_that_starts_sooner_where_it_is_stays() -> None:
    short = group("long", A, SWAP_S / 2)
    subject = problem((short, group("late", A, 4.0)), instance(BUSY, "long", "late"), instance(IDLE))
    far = replace(subject, instances=(subject.instances[0], replace(subject.instances[1], loaded_model=B)))
    assert relieve_idle(far, present(far)) == present(far)


def test_a_model_that_is_not_placed_there_is_not_brought_there() -> None:
    subject = problem(GROUPS, instance(BUSY, "long", "late", "later"), instance(IDLE))
    only_a = Kind(host_memory_bytes=10, models={A: COST})
    idle = replace(subject.instances[1], kind="y", warm_models=())
    restricted = replace(
        subject, kinds={**subject.kinds, "y": only_a}, instances=(subject.instances[0], idle)
    )
    assert relieve_idle(restricted, present(restricted)) == present(restricted)


def test_late_work_whose_move_gains_the_search_too_little_leaves_the_long_queue() -> None:
    """Found in drawn scenarios: minutes idle beside late work, which costs nothing anywhere."""
    subject = problem(GROUPS, instance(BUSY, "long", "late", "later"), instance(IDLE))
    plan = Replanner(seed=1)(subject)
    assert all(plan.queues.values()), plan.queues


@pytest.mark.parametrize(
    ("far", "taken"),
    [
        (group("far", B, 10.0), True),
        (group("far", B, 10.0, deadline_s=200.0), True),
        (group("far", B, 10.0, deadline_s=20.0), False),
        (group("far", B, 10.0, priority=-1), False),
    ],
    ids=["late", "can wait", "cannot wait", "of a higher priority"],
)
def test_an_idle_instance_takes_its_own_model_before_another_one_that_can_wait(
    far: PlannedGroup, taken: bool
) -> None:
    """Found in a drawn scenario: 50 s idle beside its own model, as the swap for its queue was deferred."""
    subject = problem(
        (group("own", B, 20.0), group("mine", A, 20.0), far),
        with_b_awake(instance(BUSY, "own", "mine", busy_s=3.0)),
        instance(IDLE, "far"),
    )
    relieved = relieve_idle(subject, present(subject))
    expected = {BUSY: ("own",), IDLE: ("mine", "far")} if taken else present(subject).queues
    assert relieved.queues == expected


def test_work_that_needs_no_swap_where_it_is_stays_there() -> None:
    """Load balance cuts it, and in front of work that waits for a swap it would put that off."""
    subject = problem(
        (LONG, group("behind", A, 4.0), group("other", B, 4.0)),
        instance(BUSY, "long", "behind"),
        instance(IDLE, "other"),
    )
    assert relieve_idle(subject, present(subject)) == present(subject)


def test_two_instances_with_each_others_work_take_it_back_one_after_the_other() -> None:
    a, b = group("a", A, 9.0), group("b", B, 5.0)
    subject = problem((a, b), with_b_awake(instance(BUSY, "a")), instance(IDLE, "b"))
    once = relieve_idle(subject, present(subject))
    assert once.queues == {BUSY: (), IDLE: ("a", "b")}
    assert relieve_idle(subject, once).queues == {BUSY: ("b",), IDLE: ("a",)}


def test_an_instance_that_took_groups_gives_its_own_to_another_idle_one() -> None:
    """Else its own would wait beside their model, behind what it took, until the next plan."""
    subject = problem(
        (group("a", A, 20.0), group("b", B, 10.0)),
        with_b_awake(instance(BUSY, "a", busy_s=60.0)),
        instance(IDLE, "b"),
        with_b_awake(instance(OTHER)),
    )
    once = relieve_idle(subject, present(subject))
    assert once.queues == {BUSY: (), IDLE: ("a",), OTHER: ("b",)}
    assert relieve_idle(subject, once) == once


def test_after_a_transfer_only_the_queues_that_it_changed_are_served_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With fifty idle instances, three seconds went to timelines that were as before."""
    served: list[InstanceId] = []

    def counting(kind: Kind, each: Instance, queue: Sequence[PlannedGroup]) -> Iterator[Served]:
        served.append(each.id)
        return timeline(kind, each, queue)

    monkeypatch.setattr(idle_relief, "timeline", counting)
    groups = tuple(group(f"g{at}", A, 20.0) for at in range(40))
    busy = [
        instance(InstanceId(f"b{at}"), *(g.id for g in groups[4 * at : 4 * at + 4]), busy_s=3.0)
        for at in range(10)
    ]
    idle = [instance(InstanceId(f"i{at}")) for at in range(10)]
    several = problem(groups, *busy, *idle)
    plan = relieve_idle(several, present(several))
    assert all(plan.queues[each.id] for each in idle)
    assert len(served) <= len(several.instances) + 2 * len(idle)
