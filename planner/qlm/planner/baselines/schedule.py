"""Partial schedule of one instance, in mean times."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.problem import Instance, Kind, PlannedGroup, Problem
from qlm.planner.swapping.swaps import Sleeping, Swaps


class ScheduleState(NamedTuple):
    """State of an instance after a group: clock and tail in mean seconds from now, and what sleeps."""

    clock_s: float
    tail_s: float
    loaded: ModelId | None
    asleep: Sleeping

    @property
    def end_s(self) -> float:
        """End of the group."""
        return self.clock_s + self.tail_s


@dataclass(slots=True)
class Schedule:
    """The queue of one instance while it is built.

    Attributes:
        swaps: Model swaps on its kind.
        start: State before the first group; its tail is what a swap discards.
        groups: Groups in the order of service.
        states: State after each of them.
    """

    instance: Instance
    kind: Kind
    swaps: Swaps
    start: ScheduleState
    groups: list[PlannedGroup] = field(default_factory=list)
    states: list[ScheduleState] = field(default_factory=list)

    @classmethod
    def of(cls, instance: Instance, kind: Kind, swaps: Swaps | None = None) -> "Schedule":
        """Return the empty schedule of an instance; those of one kind may share `swaps`."""
        swaps = swaps or Swaps(kind)
        asleep = swaps.at_first(instance)
        start = ScheduleState(instance.busy.mean, instance.leave_s, instance.loaded_model, asleep)
        return cls(instance, kind, swaps, start)

    @property
    def last(self) -> ScheduleState:
        """State after the last group."""
        return self.states[-1] if self.states else self.start

    def before(self, place: int) -> ScheduleState:
        """Return the state before the group at `place`."""
        return self.states[place - 1] if place else self.start

    def leave_s(self, state: ScheduleState) -> float:
        """Return when another model can begin to load: after the predecessor's tail and its unload."""
        cost = self.kind.models.get(state.loaded) if state.loaded is not None else None
        return state.clock_s + (state.tail_s + (cost.unload_s if cost else 0.0))

    def ready_s(self, model: ModelId, state: ScheduleState) -> float:
        """Return when a group of a model can start."""
        if model == state.loaded:
            return state.clock_s
        return self.leave_s(state) + state.asleep.wakes_s[model]

    def after(self, state: ScheduleState, group: PlannedGroup) -> ScheduleState:
        """Return the state after one more group."""
        model, asleep = group.model, state.asleep
        time = group.time[self.instance.kind]
        ready_s = state.clock_s
        if model != state.loaded:
            ready_s = self.ready_s(model, state)
            asleep = self.swaps.after(asleep, state.loaded, model)
        return ScheduleState(ready_s + time.service.mean, time.tail.mean, model, asleep)

    def insert(self, place: int, group: PlannedGroup) -> None:
        """Insert a group at a place."""
        if place == len(self.groups):
            self.states.append(self.after(self.last, group))
            self.groups.append(group)
            return
        self.groups.insert(place, group)
        del self.states[place:]
        state = self.last
        for each in self.groups[place:]:
            state = self.after(state, each)
            self.states.append(state)


def empty_schedules(problem: Problem) -> list[Schedule]:
    """Return the empty schedules of the fleet, by instance id."""
    swaps = {name: Swaps(kind) for name, kind in problem.kinds.items()}
    return [
        Schedule.of(instance, problem.kinds[instance.kind], swaps[instance.kind])
        for instance in sorted(problem.instances, key=lambda i: i.id)
    ]


def is_late(group: PlannedGroup, state: ScheduleState, now_s: float) -> bool:
    """Return True if a group misses its deadline; `state` is that after it."""
    return group.deadline_s is not None and now_s + state.end_s > group.deadline_s


def queues_of(schedules: Iterable[Schedule]) -> dict[InstanceId, tuple[GroupId, ...]]:
    """Return the ids of the groups in each schedule."""
    return {schedule.instance.id: tuple(group.id for group in schedule.groups) for schedule in schedules}
