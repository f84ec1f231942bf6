"""The fast solver: a plan at once, a better one the longer it may search.

Groups without a deadline pay nothing wherever they stand, so they stay out of the search and fill up the
plan afterwards. The search starts from the best of the present plan with what is new inserted, insertion in
deadline order, and list scheduling, and ends no worse. It is deterministic for a number of moves.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from qlm.domain.errors import InvalidValueError
from qlm.planner.arrays import NONE, Bools, ProblemArrays, problem_arrays
from qlm.planner.fast.construct import append_all, insert_all
from qlm.planner.fast.data import HASTE, MISS_WEIGHT, REQUESTS, Data, Queues, make_data, only
from qlm.planner.fast.queues import true_cost
from qlm.planner.fast.search import anneal
from qlm.planner.fast.starts import Room, appended, as_lists, copied, inserted, present, urgency_order
from qlm.planner.problem import Plan, Problem

MOVES_PER_GROUP: Final = 600
"""Moves of a search from scratch that has no limits, per group."""

MOVES_MIN: Final = 160_000
"""What small problems get (50 ms)."""

MOVES_MAX: Final = 2_000_000
"""What large ones get without limits."""

REPLAN_MOVES_PER_GROUP: Final = 40
"""Moves of a re-plan that has no limits, per group."""

ROUND_MOVES: Final = 10_000
"""A problem is annealed again and again, with about so many moves, or `MOVES_PER_GROUP`, or ..."""

ROUND_MOVES_PER_PAIR: Final = 3
"""... so many per pair of groups each: one slow annealing of a large problem is better than several."""

CHUNK_MOVES: Final = 10_000
"""Moves between two looks at the clock (3 ms)."""

MOVE_S: Final = 0.35e-6
"""What a move takes, about (AMD EPYC, 1 600 groups on 100 instances)."""

COOLED: Final = 1e-3
"""Last temperature over the first, which is the mean cost of a group."""

ONE_ROUND_HEAT: Final = 0.7
"""First temperature over that, if there is time or there are moves for one round only."""

ONE_ROUND_COOLED: Final = 7e-3
"""Likewise, the last over the first."""

INSERT_WORK_MAX: Final = 6e7
"""Groups cubed over instances: with more, groups are appended where they end first, not inserted at the best
of all places, which takes 0.05 s for 1 600 groups on 100 instances and 1 s for 1 000 on one."""

LAZY_PAIRS_MAX: Final = 50_000
"""With more pairs of a group without a deadline and an instance, such groups go where they end first: to try
all places would take 0.1 s for 500 groups on 100 instances, for 6 % less haste."""

REHEATED: Final = 0.3
"""First temperature of every other round over that of the first."""

REPLANNED: Final = 0.01
"""Likewise of a re-plan: what stands is hardly shaken."""

KEEP_SHARE: Final = 0.01
"""A change that gains less than this share of the penalty, and of the haste, is not made."""

KEEP_S: Final = 0.01
"""Likewise: less than so many seconds of penalty per request."""

HASTEN_S: Final = 0.5
"""Likewise, of haste alone: less than so many seconds of mean completion."""

POLISH_MOVES: Final = 20_000
"""Moves at the end, when all groups are there, of a plan from scratch: so many, or a 20th of all."""

POLISH_SHARE: Final = 0.6
"""How much of `FINISH_S` this may take."""

NEW_SHARE_MAX: Final = 0.2
"""With a larger share of groups that are in no queue yet, the plan is made from scratch."""

FINISH_S: Final = 0.06
"""Kept of a time limit for what comes after the search, for 1 600 groups on 100 instances; less for fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long to search.

    Attributes:
        moves: At most; None for as many as suit the size, or as the time allows.
        time_limit_s: At most, everything included; None for no limit.
        stopwatch_s: Reads a steady clock; needed for a time limit.
    """

    moves: int | None = None
    time_limit_s: float | None = None
    stopwatch_s: Callable[[], float] | None = None

    def __post_init__(self) -> None:
        if self.moves is not None and self.moves < 0:
            raise InvalidValueError("moves", self.moves, "0 or more")
        if self.time_limit_s is not None and not self.time_limit_s > 0:
            raise InvalidValueError("time_limit_s", self.time_limit_s, "a positive number")
        if self.time_limit_s is not None and self.stopwatch_s is None:
            raise InvalidValueError("stopwatch_s", None, "a clock to keep the time limit by")


NO_LIMITS: Final = Effort()


def solve_fast(
    problem: Problem, *, seed: int = 0, effort: Effort = NO_LIMITS, in_order: bool = False
) -> Plan:
    """Make a good plan.

    Args:
        problem: What waits, and the fleet. If most groups stand in present queues, this is a re-plan: it
            starts from these, and keeps them unless a change is worth it.
        seed: Of the search.
        effort: How long to search.
        in_order: Groups of one class (model, priority, times per request) are served in the order of their
            deadlines on each instance, as they are from a queue that is first come, first served: nothing
            is gained by giving up the oldest.

    Returns:
        A plan with its penalty; each placeable group on exactly one queue; priorities respected.

    Raises:
        InvalidValueError: More models than the solver takes, or no room for its queues (`starts.PLACES_MAX`).
    """
    solver = _Solver(problem, seed, effort, in_order)
    queues = solver.solve()
    penalty_s, _haste = true_cost(solver.data, queues)
    plan = solver.arrays.plan(as_lists(queues), method="fast")
    return replace(plan, penalty_s=penalty_s)


@dataclass(slots=True)
class _Clock:
    """How much of the effort is left."""

    effort: Effort
    finish_s: float
    begun_s: float = 0.0
    moved: int = 0

    def __post_init__(self) -> None:
        self.begun_s = self.effort.stopwatch_s() if self.effort.stopwatch_s else 0.0

    def left_s(self) -> float:
        """Seconds left to search."""
        if self.effort.time_limit_s is None or self.effort.stopwatch_s is None:
            return float("inf")
        return self.effort.time_limit_s - self.finish_s - (self.effort.stopwatch_s() - self.begun_s)


class _Solver:
    """One problem being solved."""

    def __init__(self, problem: Problem, seed: int, effort: Effort, in_order: bool) -> None:
        pairs = len(problem.groups) * len(problem.instances)
        self.clock = _Clock(effort, FINISH_S * min(1.0, pairs / 160_000))
        self.effort = effort
        self.arrays = problem_arrays(problem)
        self.data = make_data(self.arrays, in_order=in_order)
        self.room = Room(self.arrays, self.data)
        self.random = np.random.SeedSequence(seed).generate_state(1, np.uint64).view(np.int64) | 1
        placeable = self.arrays.placeable
        self.known = placeable & (self.arrays.home != NONE)
        self.lazy = placeable & _without_penalty(self.arrays)
        self.groups = placeable

    def solve(self) -> Queues:
        """Return the best queues found."""
        count = int(self.groups.sum())
        if not count:
            return self.room.queues()
        if self.known.sum() >= (1.0 - NEW_SHARE_MAX) * count:
            queues = present(self.arrays, self.data, self.room, self.groups)
            if queues is not None:
                return self._replanned(queues, count)
        return self._planned(count)

    def _replanned(self, queues: Queues, count: int) -> Queues:
        """Improve what stands; if that shows that it is far from good, or incomplete, plan anew, too."""
        start, few = copied(queues), REPLAN_MOVES_PER_GROUP * count
        queues = self._search(self.data, queues, min(few, self._moves(few)), REPLANNED)
        complete = int(self.known.sum()) == count
        if complete and not self._worth_it(start, queues):
            return start
        if self._much_left(count):
            queues = min((queues, self._planned(count)), key=lambda each: sum(true_cost(self.data, each)))
        return queues if self._worth_it(start, queues) else start

    def _worth_it(self, now: Queues, then: Queues) -> bool:
        """Whether other queues gain enough in penalty, or in haste at no more penalty."""
        requests = float(self.arrays.requests.sum())
        penalty_s, haste_s = true_cost(self.data, now)
        new_penalty_s, new_haste_s = true_cost(self.data, then)
        if penalty_s - new_penalty_s > max(KEEP_SHARE * penalty_s, KEEP_S * requests):
            return True
        hastened = haste_s - new_haste_s > max(KEEP_SHARE * haste_s, HASTE * HASTEN_S * requests)
        return hastened and new_penalty_s <= penalty_s

    def _planned(self, count: int) -> Queues:
        urgent = self.groups & ~self.lazy
        if not urgent.any():
            urgent = self.groups
        data = only(self.data, urgent)
        wanted = np.flatnonzero(urgent)
        makes = (inserted, appended) if self._quick(len(wanted)) else (appended,)
        starts = [make(self.arrays, data, self.room, wanted) for make in makes]
        if self.known.any():
            starts.append(present(self.arrays, data, self.room, urgent))
        found = [queues for queues in starts if queues is not None]
        if not found:
            raise self._full(count)
        queues = min(found, key=lambda each: sum(true_cost(data, each)))
        moves = self._moves(min(MOVES_MAX, max(MOVES_MIN, MOVES_PER_GROUP * len(wanted))))
        queues = self._search(data, queues, moves, 1.0)
        rest = urgency_order(self.arrays, np.flatnonzero(self.groups & ~urgent))
        if len(rest) * len(self.data.fleet) <= LAZY_PAIRS_MAX and self._quick(count):
            placed = insert_all(self.data, queues, self.room.drafts, rest)
        else:
            placed = append_all(self.data, queues, self.room.drafts, rest)
        if not placed:
            raise self._full(count)
        polish = max(self.clock.moved // 20, min(self.clock.moved // 4, POLISH_MOVES))
        left_s = self.clock.left_s() + POLISH_SHARE * self.clock.finish_s
        self._anneal(self.data, queues, polish, left_s, 0.0, 1.0)
        return queues

    def _full(self, count: int) -> InvalidValueError:
        return InvalidValueError("groups", count, f"queues of at most {self.room.capacity} groups")

    def _quick(self, count: int) -> bool:
        """Whether so many groups can be inserted, each at its best place, in a fraction of a second."""
        return count**3 <= INSERT_WORK_MAX * len(self.data.fleet)

    def _much_left(self, count: int) -> bool:
        """Whether a plan from scratch is within the limits."""
        wanted = 0.5 * MOVES_PER_GROUP * count
        if self.effort.moves is not None and self.effort.moves - self.clock.moved < wanted:
            return False
        return self.clock.left_s() > wanted * MOVE_S

    def _moves(self, usual: int) -> int:
        if self.effort.moves is not None:
            return max(0, self.effort.moves - self.clock.moved)
        return usual if self.effort.time_limit_s is None else 1 << 60

    def _search(self, data: Data, queues: Queues, moves: int, heat: float) -> Queues:
        """Anneal round after round; return the best end of a round, or the start."""
        best, best_cost = copied(queues), sum(true_cost(data, queues))
        mean_s = best_cost / max(1, len(data.peers))
        rounds = self._rounds(data, queues, moves, heat * mean_s)
        for number in range(rounds):
            left_s = self.clock.left_s()
            if left_s <= 0 or moves <= 0:
                break
            hot_s, cooled = self._heat(data, heat, mean_s, number, rounds)
            self._anneal(data, queues, moves // rounds, left_s / (rounds - number), hot_s, cooled)
            cost = sum(true_cost(data, queues))
            if cost < best_cost:
                best, best_cost = copied(queues), cost
            elif number % 2:
                queues = copied(best)
        return best

    def _heat(self, data: Data, heat: float, mean_s: float, number: int, rounds: int) -> tuple[float, float]:
        """First temperature of a round, and the last over it.

        A plan that is nearly without misses has a mean cost far below that of a group that is late on the
        way to a better one: every fourth round of a plan from scratch is hot enough for that.
        """
        if heat < 1.0:
            return heat * mean_s, COOLED
        if rounds == 1:
            return ONE_ROUND_HEAT * mean_s, ONE_ROUND_COOLED
        if number % 2:
            return REHEATED * mean_s, COOLED
        missed_s = float(data.prices[MISS_WEIGHT] * data.work[0, data.peers, REQUESTS].mean())
        return (max(mean_s, missed_s) if number % 4 == 0 else mean_s), COOLED

    def _rounds(self, data: Data, queues: Queues, moves: int, hot_s: float) -> int:
        """Into how many rounds of about the usual size to split the moves, or those that the time allows."""
        groups = len(data.peers)
        size = max(ROUND_MOVES, MOVES_PER_GROUP * groups, ROUND_MOVES_PER_PAIR * groups**2)
        left_s = self.clock.left_s()
        if left_s < float("inf") and moves > CHUNK_MOVES:
            anneal(data, queues, self.room.drafts, self.random, CHUNK_MOVES, hot_s, hot_s)
            took_s = left_s - self.clock.left_s()
            moves = min(moves, int(self.clock.left_s() / max(took_s, 1e-6) * CHUNK_MOVES))
        return max(1, round(moves / size))

    def _anneal(
        self, data: Data, queues: Queues, moves: int, whole_s: float, hot_s: float, cooled: float
    ) -> None:
        """Make the moves of a round, cooling down in time if its time is over first."""
        limited = whole_s < float("inf")
        done, until_s = 0, self.clock.left_s() - whole_s if limited else 0.0
        while done < moves and (left_s := self.clock.left_s() - until_s) > 0:
            size = min(CHUNK_MOVES, moves - done)
            part = max(done / moves, 1.0 - left_s / whole_s if limited else 0.0)
            pace = (done + size) / moves - done / moves
            from_s, to_s = (hot_s * cooled**share for share in (part, min(1.0, part + pace)))
            anneal(data, queues, self.room.drafts, self.random, size, from_s, to_s)
            done += size
            self.clock.moved += size


def _without_penalty(arrays: ProblemArrays) -> Bools:
    """Groups that cost nothing wherever they stand, and that no group with a deadline must stand behind."""
    free = np.isinf(arrays.deadline_s)
    if free.all():
        return free
    lowest = arrays.priority[~free].max()
    lazy: Bools = free & (arrays.priority >= lowest)
    return lazy
