"""Planning problems drawn at random, and what every plan must satisfy."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from hypothesis import strategies as st

from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.problem import GroupTime, Instance, Kind, ModelCost, Plan, PlannedGroup, Problem
from qlm.rct_estimator.normal import Normal

_T = TypeVar("_T")

MODELS = tuple(map(ModelId, "abcd"))
KINDS = {"small": MODELS[:2], "large": MODELS[:3], "odd": MODELS[1:3]}
"""Models that run on each kind; the last model runs nowhere."""

# Few values, so that there are ties.
_seconds = st.sampled_from([0.0, 0.1, 0.2, 0.3, 1.0, 1.5, 7.0])


@st.composite
def problems(draw: st.DrawFn, *, groups_max: int = 14, instances_max: int = 5) -> Problem:
    """Draw a fleet, which may be empty, and groups, of which some may run nowhere."""
    kinds = {
        kind: Kind(
            host_memory_bytes=draw(st.sampled_from([0, 2, 3, 100])),
            models={model: draw(_costs()) for model in models},
        )
        for kind, models in KINDS.items()
    }
    names = [GroupId(f"g{i}") for i in range(draw(st.integers(0, groups_max)))]
    groups = tuple(draw(_groups(name)) for name in names)
    standing = iter(draw(st.permutations(names)))
    instances = tuple(
        Instance(
            id=InstanceId(f"i{i}"),
            kind=draw(st.sampled_from(sorted(kinds))),
            loaded_model=draw(st.none() | st.sampled_from(MODELS)),
            warm_models=tuple(draw(st.lists(st.sampled_from(MODELS), unique=True))),
            busy=Normal(draw(_seconds)),
            leave_s=draw(_seconds),
            queue=tuple(name for name, _ in zip(standing, range(draw(st.integers(0, 3))), strict=False)),
        )
        for i in range(draw(st.integers(0, instances_max)))
    )
    now_s, move_s = draw(st.sampled_from([0.0, 5.0])), draw(_seconds)
    return Problem(now_s=now_s, move_s=move_s, kinds=kinds, instances=instances, groups=groups)


@st.composite
def _costs(draw: st.DrawFn) -> ModelCost:
    warm, cold, unload = draw(_seconds), draw(_seconds), draw(_seconds)
    reload = draw(st.none() | _seconds)
    return ModelCost(
        weights_bytes=1,
        process_bytes=draw(st.integers(0, 1)),
        swap_warm_s=warm,
        swap_reload_s=reload,
        swap_cold_s=cold,
        unload_s=unload,
    )


@st.composite
def _groups(draw: st.DrawFn, name: GroupId) -> PlannedGroup:
    runs_on = draw(st.sets(st.sampled_from(sorted(KINDS)), min_size=2))
    return PlannedGroup(
        id=name,
        model=draw(st.sampled_from(MODELS)),
        requests=draw(st.integers(1, 4)),
        deadline_s=draw(st.none() | st.sampled_from([1.0, 5.0, 9.5, 20.0])),
        priority=draw(st.integers(-1, 1)),
        time={
            kind: GroupTime(service=Normal(draw(_seconds)), tail=Normal(draw(_seconds)))
            for kind in sorted(runs_on)
        },
    )


def shuffled(problem: Problem, rng: random.Random) -> Problem:
    """The same problem with everything in another order."""
    kinds = list(problem.kinds.items())
    groups = [replace(g, time=dict(_mixed(list(g.time.items()), rng))) for g in problem.groups]
    instances = list(problem.instances)
    return replace(
        problem,
        kinds=dict(_mixed(kinds, rng)),
        groups=tuple(_mixed(groups, rng)),
        instances=tuple(_mixed(instances, rng)),
    )


def _mixed(items: list[_T], rng: random.Random) -> list[_T]:
    rng.shuffle(items)
    return items


def check_plan(problem: Problem, plan: Plan) -> None:
    """Each group that can run stands once, where it runs; the others are named, whoever planned."""
    groups = {group.id: group for group in problem.groups}
    placed = [group for queue in plan.queues.values() for group in queue]
    assert sorted([*placed, *plan.unplaceable]) == sorted(groups)
    assert set(plan.queues) == {instance.id for instance in problem.instances}
    for instance in problem.instances:
        for id in plan.queues[instance.id]:
            assert _runs(groups[id], instance, problem)
    for id in plan.unplaceable:
        assert not any(_runs(groups[id], instance, problem) for instance in problem.instances)


def _runs(group: PlannedGroup, instance: Instance, problem: Problem) -> bool:
    return instance.kind in group.time and group.model in problem.kinds[instance.kind].models


def check_priorities(problem: Problem, plan: Plan) -> None:
    """No group stands behind one of a higher priority number."""
    groups = {group.id: group for group in problem.groups}
    for queue in plan.queues.values():
        priorities = [groups[id].priority for id in queue]
        assert priorities == sorted(priorities)


Method = Callable[[Problem], Plan]
