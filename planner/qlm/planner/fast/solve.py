"""The fast solver: simulated annealing over virtual queues, as an anytime method.

Groups without a deadline pay nothing wherever they are placed, so they stay out of the search and fill up
the plan afterwards. The first solution is the best of the present plan with new groups inserted, cheapest
insertion in deadline order, and list scheduling; the result is never worse. It is deterministic for a
number of moves.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from qlm.domain.errors import InvalidValueError
from qlm.planner.arrays import NONE, Bools, ProblemArrays, problem_arrays
from qlm.planner.fast.construct import append_all, insert_all
from qlm.planner.fast.data import (
    COMPLETION_WEIGHT,
    MISS_WEIGHT,
    REQUESTS,
    Data,
    Queues,
    has_promises,
    ignoring_promises,
    make_data,
    only,
)
from qlm.planner.fast.initial import (
    Workspace,
    as_lists,
    copy_queues,
    insertion_plan,
    list_scheduling_plan,
    present_plan,
    priced_again,
    urgency_order,
)
from qlm.planner.fast.queues import true_cost
from qlm.planner.fast.search import anneal
from qlm.planner.fast.settings import DEFAULT_SETTINGS, UNLIMITED, SearchBudget, SearchSettings
from qlm.planner.problem import Plan, Problem


def solve_fast(
    problem: Problem,
    *,
    seed: int = 0,
    budget: SearchBudget = UNLIMITED,
    settings: SearchSettings = DEFAULT_SETTINGS,
    in_order: bool = False,
) -> Plan:
    """Plan by local search.

    Args:
        problem: If most groups have a place in present queues, this is a re-plan: it starts from these, and
            keeps them unless a change is worth it.
        seed: Seed of the search.
        budget: Limits of the search.
        settings: Lengths, temperatures and thresholds of the search.
        in_order: Serve the groups of one class (model, priority, times per request) in the order of their
            deadlines on each instance, as a queue that is first come, first served does: giving up the oldest
            gains nothing.

    Returns:
        A plan with its penalty; each placeable group on exactly one queue; priorities respected.

    Raises:
        InvalidValueError: Its queues need too much memory (`initial.QUEUE_SLOTS_MAX`).
    """
    return search(problem, seed=seed, budget=budget, settings=settings, in_order=in_order).plan


Costs = tuple[float, float, float]
"""Penalty, completion cost, and price of promises."""


class Found(NamedTuple):
    """Plan of a search.

    Attributes:
        plan: The plan.
        moves: Moves that were made: often fewer than the budget allows.
    """

    plan: Plan
    moves: int


def search(
    problem: Problem,
    *,
    seed: int = 0,
    budget: SearchBudget = UNLIMITED,
    settings: SearchSettings = DEFAULT_SETTINGS,
    in_order: bool = False,
) -> Found:
    """Plan as `solve_fast` does, with its arguments and errors, and count the moves."""
    solver = _Solver(problem, seed, budget, settings, in_order)
    queues = solver.solve()
    penalty_s, _completion, promises_s = solver.true_cost(solver.data, queues)
    plan = solver.arrays.plan(as_lists(queues), method="fast")
    return Found(replace(plan, penalty_s=penalty_s + promises_s), solver.clock.moved)


class _Clock:
    """Time and moves used of a budget."""

    def __init__(self, budget: SearchBudget, finish_s: float) -> None:
        self.budget, self.finish_s = budget, finish_s
        self.begun_s = budget.stopwatch_s() if budget.stopwatch_s else 0.0
        self.moved = 0
        self.reserved_s = 0.0

    def left_s(self) -> float:
        """Return the seconds left to search, but for those that are reserved."""
        if self.budget.time_limit_s is None or self.budget.stopwatch_s is None:
            return float("inf")
        kept_s = self.finish_s + self.reserved_s
        return self.budget.time_limit_s - kept_s - (self.budget.stopwatch_s() - self.begun_s)

    def moves(self, usual: int) -> int:
        """Return the moves left; `usual` if neither moves nor time are limited."""
        if self.budget.moves is not None:
            return max(0, self.budget.moves - self.moved)
        return usual if self.budget.time_limit_s is None else 1 << 60


class _Solver:
    """The search on one problem."""

    def __init__(
        self, problem: Problem, seed: int, budget: SearchBudget, settings: SearchSettings, in_order: bool
    ) -> None:
        pairs = len(problem.groups) * len(problem.instances)
        self.settings = settings
        self.clock = _Clock(budget, settings.finish_s * min(1.0, pairs / 160_000))
        self.arrays = problem_arrays(problem)
        self.data = make_data(self.arrays, in_order=in_order)
        self.workspace = Workspace(self.arrays, self.data)
        self.random = np.random.SeedSequence(seed).generate_state(1, np.uint64).view(np.int64) | 1
        self.groups = self.arrays.placeable
        self.placed = self.groups & (self.arrays.home != NONE)
        self.penalty_free = self.groups & _penalty_free(self.arrays)
        self._costs: dict[int, tuple[Data, Queues, Costs]] = {}

    def true_cost(self, data: Data, queues: Queues) -> Costs:
        """Return `queues.true_cost`, a sum over all requests, once for queues that stay as they are."""
        known = self._costs.get(id(queues))
        if known is None or known[0] is not data or known[1] is not queues:
            known = self._costs[id(queues)] = (data, queues, true_cost(data, queues))
        return known[2]

    def _copied(self, queues: Queues) -> Queues:
        copy = copy_queues(queues)
        if known := self._costs.get(id(queues)):
            self._costs[id(copy)] = (known[0], copy, known[2])
        return copy

    def _changes(self, queues: Queues) -> Queues:
        """Forget what queues cost: they are about to change."""
        self._costs.pop(id(queues), None)
        return queues

    def solve(self) -> Queues:
        """Return the best queues found."""
        count = int(self.groups.sum())
        if not count:
            return self.workspace.queues()
        if self.placed.sum() >= (1.0 - self.settings.new_share_max) * count:
            queues = present_plan(self.arrays, self.data, self.workspace, self.groups)
            if queues is not None:
                return self._replan(queues, count)
        return self._plan_from_scratch(count)

    def _replan(self, queues: Queues, count: int) -> Queues:
        """Improve the present plan; if much can be gained, or groups are new, plan from scratch, too."""
        self.true_cost(self.data, queues)
        start, few = self._copied(queues), self.settings.replan_moves_per_group * count
        moves = min(few, self.clock.moves(few))
        queues = self._search(self.data, queues, moves, self.settings.replan_temperature)
        complete = int(self.placed.sum()) == count
        if complete and not self._gains_enough(start, queues):
            return start
        if self._budget_allows_restart(count):
            restarted = self._plan_from_scratch(count)
            queues = min((queues, restarted), key=lambda each: sum(self.true_cost(self.data, each)))
        return queues if self._gains_enough(start, queues) else start

    def _gains_enough(self, old: Queues, new: Queues) -> bool:
        """True if new queues gain enough in penalty, or in completion cost at no more penalty.

        Promises that no plan keeps, which may be dear, raise no threshold.
        """
        s, requests = self.settings, float(self.arrays.requests.sum())
        penalty_s, completion_s, promises_s = self.true_cost(self.data, old)
        new_penalty_s, new_completion_s, new_promises_s = self.true_cost(self.data, new)
        gain_s = penalty_s + promises_s - new_penalty_s - new_promises_s
        if gain_s > max(s.keep_share * penalty_s, s.keep_s * requests):
            return True
        least_s = max(s.keep_share * completion_s, COMPLETION_WEIGHT * s.keep_completion_s * requests)
        return completion_s - new_completion_s > least_s and gain_s >= 0.0

    def _plan_from_scratch(self, count: int) -> Queues:
        s, workspace = self.settings, self.workspace
        urgent = self.groups & ~self.penalty_free
        if not urgent.any():
            urgent = self.groups
        data = only(self.data, urgent)
        queues = self._first_solution(data, urgent, count)
        wanted = int(urgent.sum())
        moves = self.clock.moves(min(s.moves_max, max(s.moves_min, s.moves_per_group * wanted)))
        if has_promises(data):
            ignoring = round(s.ignoring_share * moves)
            plain = self._without_promises(data, urgent, count, ignoring)
            queues = min((plain, queues), key=lambda each: sum(self.true_cost(data, each)))
            moves -= ignoring
        queues = self._search(data, queues, moves, 1.0)
        rest = urgency_order(self.arrays, np.flatnonzero(self.groups & ~urgent))
        if len(rest) * len(self.data.fleet) <= s.free_pairs_max and self._inserts_quickly(count):
            complete = insert_all(self.data, self._changes(queues), workspace.candidates, rest)
        else:
            complete = append_all(self.data, self._changes(queues), workspace.candidates, rest)
        if not complete:
            raise self._full(count)
        polish = max(self.clock.moved // 20, min(self.clock.moved // 4, s.polish_moves))
        left_s = self.clock.left_s() + s.polish_share * self.clock.finish_s
        self._anneal(self.data, queues, polish, left_s, 0.0, 1.0)
        return queues

    def _without_promises(self, data: Data, urgent: Bools, count: int, moves: int) -> Queues:
        """Search for a plan that ignores promises, in its share of the time, and price it with them.

        Prices of promises divide the plans into regions between which a search hardly passes. It is better
        begun where all else is good.
        """
        ignoring = ignoring_promises(data)
        left_s = self.clock.left_s()
        later = 1.0 - self.settings.ignoring_share
        self.clock.reserved_s = later * left_s if left_s < float("inf") else 0.0
        queues = self._first_solution(ignoring, urgent, count)
        queues = self._search(ignoring, queues, moves, 1.0)
        self.clock.reserved_s = 0.0
        return priced_again(data, self.workspace, queues)

    def _first_solution(self, data: Data, urgent: Bools, count: int) -> Queues:
        wanted = np.flatnonzero(urgent)
        heuristics = [list_scheduling_plan]
        if self._inserts_quickly(len(wanted)):
            heuristics.insert(0, insertion_plan)
        plans = [build(self.arrays, data, self.workspace, wanted) for build in heuristics]
        if self.placed.any():
            plans.append(present_plan(self.arrays, data, self.workspace, urgent))
        complete = [queues for queues in plans if queues is not None]
        if not complete:
            raise self._full(count)
        return min(complete, key=lambda each: sum(self.true_cost(data, each)))

    def _full(self, count: int) -> InvalidValueError:
        return InvalidValueError("groups", count, f"queues of at most {self.workspace.capacity} groups")

    def _inserts_quickly(self, count: int) -> bool:
        """True if cheapest insertion of this many groups takes a fraction of a second."""
        return count**3 <= self.settings.insertion_work_max * len(self.data.fleet)

    def _budget_allows_restart(self, count: int) -> bool:
        """True if moves and time are left for a plan from scratch."""
        wanted = 0.5 * self.settings.moves_per_group * count
        budget = self.clock.budget
        if budget.moves is not None and budget.moves - self.clock.moved < wanted:
            return False
        return self.clock.left_s() > wanted * self.settings.move_s

    def _search(self, data: Data, queues: Queues, moves: int, heat: float) -> Queues:
        """Anneal round after round; return the best result of a round, or the start."""
        penalty_s, completion_s, promises_s = self.true_cost(data, queues)
        best, best_cost = self._copied(queues), penalty_s + completion_s + promises_s
        # The price of a broken promise does not heat the search: it would weigh nothing else then.
        mean_s = (penalty_s + completion_s) / max(1, len(data.peers))
        rounds = self._round_count(data, queues, moves, heat * mean_s)
        for number in range(rounds):
            left_s = self.clock.left_s()
            if left_s <= 0 or moves <= 0:
                break
            hot_s, ratio = self._temperatures(data, heat, mean_s, number, rounds)
            self._anneal(data, queues, moves // rounds, left_s / (rounds - number), hot_s, ratio)
            cost = sum(self.true_cost(data, queues))
            if cost < best_cost:
                best, best_cost = self._copied(queues), cost
            elif number % 2:
                queues = self._copied(best)
        return best

    def _temperatures(
        self, data: Data, heat: float, mean_s: float, number: int, rounds: int
    ) -> tuple[float, float]:
        """Return the first temperature of a round, in seconds, and the last over it."""
        s = self.settings
        if heat < 1.0:
            return heat * mean_s, s.temperature_ratio
        if rounds == 1:
            return s.single_round_temperature * mean_s, s.single_round_ratio
        if number % 2:
            return s.reheat * mean_s, s.temperature_ratio
        # In a plan with hardly any miss, the mean cost of a group is far below that of a group that is late
        # on the way to a better plan. Every fourth round of a plan from scratch is hot enough to pass over
        # it.
        missed_s = float(data.prices[MISS_WEIGHT] * data.work[0, data.peers, REQUESTS].mean())
        return (max(mean_s, missed_s) if number % 4 == 0 else mean_s), s.temperature_ratio

    def _round_count(self, data: Data, queues: Queues, moves: int, hot_s: float) -> int:
        """Split the moves, or those that the time allows, into rounds of about the usual size."""
        s, groups = self.settings, len(data.peers)
        size = max(s.round_moves, s.moves_per_group * groups, s.round_moves_per_pair * groups**2)
        left_s = self.clock.left_s()
        if left_s < float("inf") and moves > s.chunk_moves:
            self._make_moves(data, queues, s.chunk_moves, hot_s, hot_s)
            took_s = left_s - self.clock.left_s()
            moves = min(moves, int(self.clock.left_s() / max(took_s, 1e-6) * s.chunk_moves))
        return max(1, round(moves / size))

    def _anneal(
        self, data: Data, queues: Queues, moves: int, time_s: float, hot_s: float, ratio: float
    ) -> None:
        """Make the moves of a round, cooling down faster if its time is over first."""
        limited = time_s < float("inf")
        done, until_s = 0, self.clock.left_s() - time_s if limited else 0.0
        while done < moves and (left_s := self.clock.left_s() - until_s) > 0:
            size = min(self.settings.chunk_moves, moves - done)
            part = max(done / moves, 1.0 - left_s / time_s if limited else 0.0)
            pace = (done + size) / moves - done / moves
            from_s, to_s = (hot_s * ratio**share for share in (part, min(1.0, part + pace)))
            self._make_moves(data, queues, size, from_s, to_s)
            done += size
            self.clock.moved += size

    def _make_moves(self, data: Data, queues: Queues, moves: int, hot_s: float, cold_s: float) -> None:
        neighborhood, candidates = self.settings.neighborhood, self.workspace.candidates
        anneal(data, self._changes(queues), candidates, self.random, neighborhood, moves, hot_s, cold_s)


def _penalty_free(arrays: ProblemArrays) -> Bools:
    """Select groups that never cost anything and precede no group with a deadline; (G,)."""
    free = np.isinf(arrays.deadline_s)
    if free.all():
        return free
    lowest = arrays.priority[~free].max()
    selected: Bools = free & (arrays.priority >= lowest)
    return selected
