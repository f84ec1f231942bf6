"""List scheduling: the quick way places exactly as asking every instance does."""

from hypothesis import given, settings

from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.baselines.earliest_start import EarliestStarts
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.baselines.fcfs import plan_fcfs
from qlm.planner.baselines.schedule import empty_schedules
from qlm.planner.problem import GroupTime, Instance, Kind, ModelCost, PlannedGroup, Problem
from qlm.rct_estimator.normal import Normal
from support.planning import problems
from support.sleepers import first_asleep, swap

M = ModelId("m")


class _Lane:
    """A queue that is timed from its beginning again for each question."""

    def __init__(self, instance: Instance, problem: Problem) -> None:
        self.instance, self.problem, self.groups = instance, problem, list[PlannedGroup]()

    def ends_s(self, groups: list[PlannedGroup]) -> list[float]:
        instance, kind = self.instance, self.problem.kinds[self.instance.kind]
        clock_s, tail_s, loaded = instance.busy.mean, instance.leave_s, instance.loaded_model
        asleep, ends_s = first_asleep(instance, kind), []
        for group in groups:
            if group.model != loaded:
                cost = kind.models.get(loaded) if loaded is not None else None
                swap_s, asleep = swap(kind, asleep, loaded, group.model)
                # In the order of the schedule: sums of the same numbers may differ in the last digit.
                unload_s = cost.unload_s if cost else 0.0
                clock_s = clock_s + (tail_s + unload_s) + (swap_s - unload_s)
                loaded = group.model
            time = group.time[self.instance.kind]
            clock_s, tail_s = clock_s + time.service.mean, time.tail.mean
            ends_s.append(clock_s + tail_s)
        return ends_s

    def missed(self, groups: list[PlannedGroup]) -> int:
        return sum(
            group.requests
            for group, end_s in zip(groups, self.ends_s(groups), strict=True)
            if group.deadline_s is not None and self.problem.now_s + end_s > group.deadline_s
        )

    def beside(self, group: PlannedGroup) -> list[PlannedGroup]:
        """Its groups with the new one where EDF puts it."""
        at_end = [*self.groups, group]
        same = [i for i, other in enumerate(self.groups) if other.model == group.model]
        if not same and group.model != self.instance.loaded_model:
            return at_end
        spot = same[-1] + 1 if same else 0
        if any(other.priority < group.priority for other in self.groups[spot:]):
            return at_end
        together = [*self.groups[:spot], group, *self.groups[spot:]]
        return together if self.missed(together) <= self.missed(at_end) else at_end


def plainly(problem: Problem, *, edf: bool) -> dict[InstanceId, tuple[GroupId, ...]]:
    """Ask every instance for every group."""
    schedules = [_Lane(i, problem) for i in sorted(problem.instances, key=lambda i: i.id)]
    home = {group: schedule.instance.id for schedule in schedules for group in schedule.instance.queue}

    def end_s(schedule: _Lane, group: PlannedGroup) -> float:
        away = home.get(group.id, schedule.instance.id) != schedule.instance.id
        return schedule.ends_s([*schedule.groups, group])[-1] + (problem.move_s if away else 0.0)

    def turn(group: PlannedGroup) -> tuple[int, float, str]:
        deadline_s = float("inf") if group.deadline_s is None else group.deadline_s
        return (group.priority if edf else 0, deadline_s, group.id)

    for group in sorted(problem.groups, key=turn):
        able = [
            schedule
            for schedule in schedules
            if schedule.instance.kind in group.time
            and group.model in problem.kinds[schedule.instance.kind].models
        ]
        if able:
            schedule = min(able, key=lambda schedule: end_s(schedule, group))
            schedule.groups = schedule.beside(group) if edf else [*schedule.groups, group]
    return {schedule.instance.id: tuple(group.id for group in schedule.groups) for schedule in schedules}


@settings(max_examples=150)
@given(problems())
def test_each_group_goes_where_asking_every_instance_would_send_it(problem: Problem) -> None:
    assert plan_fcfs(problem).queues == plainly(problem, edf=False)
    assert plan_edf(problem).queues == plainly(problem, edf=True)


def test_beginnings_that_round_to_the_same_end_count_as_equal() -> None:
    cost = ModelCost(weights_bytes=1, swap_warm_s=1.0, swap_cold_s=1.0)
    later_s = 1.0 + 2**-52
    assert later_s > 1.0 and later_s + 1e6 == 1.0 + 1e6
    problem = Problem(
        now_s=0.0,
        kinds={"k": Kind(host_memory_bytes=100, models={M: cost})},
        instances=tuple(
            Instance(id=InstanceId(id), kind="k", loaded_model=M, busy=Normal(busy_s))
            for id, busy_s in (("i0", 2.0), ("i1", later_s), ("i2", 1.0))
        ),
        groups=(
            PlannedGroup(
                id=GroupId("g"),
                model=M,
                requests=1,
                deadline_s=None,
                time={"k": GroupTime(service=Normal(1e6), tail=Normal(0.0))},
            ),
        ),
    )
    assert EarliestStarts(empty_schedules(problem), [M]).first(problem.groups[0]) == 1
    assert plan_fcfs(problem).queues == plainly(problem, edf=False)
