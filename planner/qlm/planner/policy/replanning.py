"""Re-planning policy: the fast solver as a controller calls it, at every planning turn.

* Without new groups, and before the next improvement: keep the present plan, at no cost. * With new groups:
insert them where they cost least, and change nothing else. * Periodically, or at once when instances come,
go or change their model, or when the penalty has grown: improve the
  whole plan. A change must be worth it (`fast.solve`: moves and swaps have a price, and small gains are
  ignored).
"""

from dataclasses import dataclass, replace
from typing import Final

from qlm.domain.errors import InvalidValueError
from qlm.domain.ids import GroupId
from qlm.planner.fast.settings import DEFAULT_SETTINGS, SearchBudget
from qlm.planner.fast.solve import search, solve_fast
from qlm.planner.method_names import KEPT
from qlm.planner.policy.idle_relief import relieve_idle
from qlm.planner.problem import Instance, Plan, PlannedGroup, Problem

GROWN_SHARE: Final = 0.1
"""Growth of the penalty since the last improvement, as a share, that triggers the next one."""

GROWN_S: Final = 0.5
"""Least growth in seconds per waiting request that triggers an improvement: small penalties double easily."""


UNPACED_S: Final = 0.05
"""Improvements that take no longer than this, of some hundred groups, are as frequent as asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplanSettings:
    """Frequency and effort of improvements.

    Attributes:
        every_s: Interval of improvements of the whole plan.
        urgent_s: Shortest interval of improvements.
        moves_per_group: Most moves of the solver per improvement; simulations charge planning time for them.
        moves_max: Most moves of an improvement of any plan: they take half a second.
        share_max: Share of the time that longer improvements may take: large plans are improved less often.
    """

    every_s: float = 1.0
    urgent_s: float = 0.2
    moves_per_group: int = 640
    moves_max: int = 700_000
    share_max: float = 0.02

    def __post_init__(self) -> None:
        if not 0 < self.urgent_s <= self.every_s:
            raise InvalidValueError("urgent_s", self.urgent_s, f"more than 0, at most {self.every_s:g}")
        if self.moves_per_group < 0:
            raise InvalidValueError("moves_per_group", self.moves_per_group, "0 or more")
        if not 0 < self.share_max <= 1:
            raise InvalidValueError("share_max", self.share_max, "more than 0, at most 1")

    def moves(self, problem: Problem) -> int:
        """Return the moves of the solver for one improvement."""
        return min(self.moves_max, self.moves_per_group * len(problem.groups))


def improved(problem: Problem) -> Plan:
    """Improve the present plan of a problem, as a controller with the default settings does once."""
    budget = SearchBudget(moves=ReplanSettings().moves(problem))
    return relieve_idle(problem, solve_fast(problem, budget=budget, in_order=True))


class Replanner:
    """Stateful planner of a controller.

    Attributes:
        moves: Moves of the solver in the last turn.
    """

    def __init__(self, settings: ReplanSettings | None = None, *, seed: int = 0) -> None:
        self.moves = 0
        self._settings = settings or ReplanSettings()
        self._seed = seed
        self._planned: frozenset[GroupId] = frozenset()
        self._fleet: frozenset[object] = frozenset()
        self._improved_s = float("-inf")
        self._penalty_s = 0.0
        self._rest_s = 0.0

    def __call__(self, problem: Problem) -> Plan:
        """Plan the waiting groups; `now_s` must not fall from call to call."""
        fleet = frozenset(_identity(problem, instance) for instance in problem.instances)
        since_s = problem.now_s - self._improved_s
        urgent_s = max(self._settings.urgent_s, self._rest_s)
        due = since_s >= max(self._settings.every_s, self._rest_s) or since_s < 0
        due = due or (fleet != self._fleet and since_s >= urgent_s)
        waiting = frozenset(group.id for group in problem.groups)
        new_groups = waiting - self._planned
        self.moves = 0
        if due:
            plan = self._improve(problem, new_groups, fleet)
        elif new_groups or not _covers(problem):
            plan = self._insert(problem, new_groups)
            if self._grown(plan, problem) and since_s >= urgent_s:
                plan = self._improve(problem, new_groups, fleet)
        else:
            plan = _kept(problem, waiting)
        self._planned = waiting
        return plan

    def _improve(self, problem: Problem, new_groups: frozenset[GroupId], fleet: frozenset[object]) -> Plan:
        self.moves = self._settings.moves(problem)
        if problem.groups:
            plan, moves = self._searched(problem, new_groups)
        else:
            plan, moves = replace(_kept(problem, new_groups), penalty_s=0.0), 0
        took_s = moves * DEFAULT_SETTINGS.move_s
        self._rest_s = (took_s - UNPACED_S) / self._settings.share_max
        self._improved_s, self._penalty_s, self._fleet = problem.now_s, plan.penalty_s or 0.0, fleet
        return plan

    def _searched(self, problem: Problem, new_groups: frozenset[GroupId]) -> tuple[Plan, int]:
        """Return the best plan that was found, and the moves that it took."""
        found = search(
            _without(problem, new_groups),
            seed=self._seed,
            budget=SearchBudget(moves=self.moves),
            in_order=True,
        )
        return relieve_idle(problem, found.plan), found.moves

    def _insert(self, problem: Problem, new_groups: frozenset[GroupId]) -> Plan:
        return solve_fast(
            _without(problem, new_groups), seed=self._seed, budget=SearchBudget(moves=0), in_order=True
        )

    def _grown(self, plan: Plan, problem: Problem) -> bool:
        requests = sum(group.requests for group in problem.groups)
        grown_s = (plan.penalty_s or 0.0) - self._penalty_s
        return grown_s > max(GROWN_SHARE * self._penalty_s, GROWN_S * requests)


def _identity(problem: Problem, instance: Instance) -> object:
    """Return the part of an instance's state whose change triggers an improvement."""
    return (instance.id, frozenset(problem.kinds[instance.kind].models), instance.loaded_model)


def _covers(problem: Problem) -> bool:
    """Return True if each group is placed where it can run, or can run nowhere."""
    home = {group: instance for instance in problem.instances for group in instance.queue}
    kinds = {instance.kind for instance in problem.instances}
    for group in problem.groups:
        at = home.get(group.id)
        if at is None:
            if any(_runs(problem, group, kind) for kind in kinds):
                return False
        elif not _runs(problem, group, at.kind):
            return False
    return True


def _runs(problem: Problem, group: PlannedGroup, kind: str) -> bool:
    return kind in group.time and group.model in problem.kinds[kind].models


def _without(problem: Problem, groups: frozenset[GroupId]) -> Problem:
    """Remove groups from the present queues, so that they may go anywhere without a price."""
    if not groups:
        return problem
    instances = tuple(
        replace(each, queue=tuple(g for g in each.queue if g not in groups)) if each.queue else each
        for each in problem.instances
    )
    return replace(problem, instances=instances)


def _kept(problem: Problem, waiting: frozenset[GroupId]) -> Plan:
    queues = {each.id: tuple(g for g in each.queue if g in waiting) for each in problem.instances}
    placed = {group for queue in queues.values() for group in queue}
    unplaceable = tuple(sorted(waiting - placed))
    return Plan(queues=queues, unplaceable=unplaceable, method=KEPT)
