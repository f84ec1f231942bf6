"""Lookup of a problem's parts: groups and instances by id, present places, and eligibility."""

from dataclasses import dataclass

from qlm.domain.ids import GroupId, InstanceId
from qlm.planner.problem import Instance, PlannedGroup, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemIndex:
    """A problem with its parts by id.

    Attributes:
        instances: Instances by id, in order of the ids.
        home: Instance whose present queue has the group, for groups in a queue.
        kinds_in_use: Kinds of the instances in the fleet.
    """

    problem: Problem
    groups: dict[GroupId, PlannedGroup]
    instances: dict[InstanceId, Instance]
    home: dict[GroupId, InstanceId]
    kinds_in_use: frozenset[str]

    @classmethod
    def of(cls, problem: Problem) -> "ProblemIndex":
        """Index a problem."""
        instances = {each.id: each for each in sorted(problem.instances, key=lambda i: i.id)}
        return cls(
            problem=problem,
            groups={group.id: group for group in problem.groups},
            instances=instances,
            home={group: each.id for each in instances.values() for group in each.queue},
            kinds_in_use=frozenset(each.kind for each in problem.instances),
        )

    def kind_runs(self, kind: str, group: PlannedGroup) -> bool:
        """Return True if instances of the kind can run the group."""
        return group.model in self.problem.kinds[kind].models and kind in group.time

    def runs(self, instance: Instance, group: PlannedGroup) -> bool:
        """Return True if the instance can run the group."""
        return self.kind_runs(instance.kind, group)

    def placeable(self, group: PlannedGroup) -> bool:
        """Return True if some instance can run the group."""
        kinds, model, time = self.problem.kinds, group.model, group.time
        return any(kind in time and model in kinds[kind].models for kind in self.kinds_in_use)

    def moved(self, group: GroupId, to: InstanceId) -> bool:
        """Return True if the present queue of another instance has the group."""
        return self.home.get(group, to) != to

    def why_unplaceable(self, group: PlannedGroup) -> str:
        """Return the reason why no instance can run the group, for users."""
        if not self.kinds_in_use:
            return "there is no instance"
        with_model = sorted(
            kind for kind in self.kinds_in_use if group.model in self.problem.kinds[kind].models
        )
        if with_model:
            return f"the group has no time for {', '.join(with_model)}, where {group.model} runs"
        others = sorted(kind for kind in self.problem.kinds if self.kind_runs(kind, group))
        if others:
            return f"{group.model} runs on {', '.join(others)} only, of which there is no instance"
        return f"{group.model} runs on no instance"
