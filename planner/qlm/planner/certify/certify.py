"""A lower bound on the penalty of every plan by column generation, and the gap of a plan to it; offline."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from qlm.planner.arrays import Floats, Ints, ProblemArrays, problem_arrays
from qlm.planner.bound.dual_ascent import group_prices
from qlm.planner.bound.lower_bound import ROUNDED, lower_bound
from qlm.planner.bound.relaxation import Weights, relaxation
from qlm.planner.certify.ascent import Over, Pricing, ascend, bound_at
from qlm.planner.certify.certificate import TIME_LIMIT_S, Certificate, Ended, Progress
from qlm.planner.certify.marks import choose_marks, contradicts
from qlm.planner.certify.master import Column, Master
from qlm.planner.certify.tracks import Tracks, build_tracks, marked
from qlm.planner.problem import Plan, Problem
from qlm.planner.verify.referee import Report, verify

STEPS: Final = 2_000
"""Steps of the grid for up to `FINE_PAIRS_MAX` pairs of a group and an instance; else `COARSE_STEPS`."""

COARSE_STEPS: Final = 1_000
FINE_PAIRS_MAX: Final = 20_000

BEYOND: Final = 1.1
"""End of the grid, over the latest start of the plan."""

FIRST_PASSES: Final = 40
"""Passes of the ascent of the simple relaxation that gives the first prices."""

PASSES_MAX: Final = 150
"""Most passes of the ascent."""

ASCENT_SHARE: Final = 0.5
"""Share of the time that the ascent may take."""

SMOOTHING: Final = 0.7
"""Weight of the best prices so far when queues are priced; the rest are the duals of the master program."""

CONVERGED: Final = 1e-3
"""Share by which the master program may be above the bound before more is marked."""

PROVEN: Final = 1e-6
"""A plan is the best if it is within this share of the bound."""


def certify(
    problem: Problem,
    plan: Plan,
    *,
    stopwatch_s: Callable[[], float],
    time_limit_s: float = TIME_LIMIT_S,
    seed: int = 0,
    notify: Callable[[Progress], None] = lambda progress: None,
) -> Certificate:
    """Prove a lower bound for the objective `requests`.

    Args:
        problem: The problem.
        plan: A plan of it, the better the more useful.
        stopwatch_s: Reads a steady clock.
        time_limit_s: Time after which the best bound so far is returned.
        seed: Seed of the order in which lane types take turns.
        notify: Receives the progress.
    """
    began_s = stopwatch_s()
    report = verify(problem, plan)
    simple_s = lower_bound(problem)
    arrays = problem_arrays(problem)
    priced = bool((arrays.placeable & np.isfinite(arrays.deadline_s)).any())
    horizon_s = BEYOND * max(
        (row.start.mean for row in report.rows if row.deadline_s is not None), default=0.0
    )
    if not priced or horizon_s <= 0.0 or report.penalty_s - simple_s <= PROVEN * report.penalty_s:
        search = None
    else:
        fine = len(arrays.groups) * len(arrays.instances) <= FINE_PAIRS_MAX
        tracks = build_tracks(arrays, horizon_s, STEPS if fine else COARSE_STEPS)
        clock = _Clock(stopwatch_s, began_s, time_limit_s, notify)
        worth_s = arrays.requests[tracks.groups] * max(1.0, arrays.miss_weight_s)
        search = _Search(tracks, clock, report.penalty_s, simple_s, worth_s)
        if len(tracks.groups):
            search.run(first_prices(arrays, tracks), plan_columns(tracks, problem, plan, report), seed)
    bound_s = min(simple_s if search is None else search.bound_s, report.penalty_s)
    proven = report.penalty_s - bound_s <= PROVEN * max(1.0, report.penalty_s)
    return Certificate(
        plan=replace(plan, penalty_s=report.penalty_s, lower_bound_s=bound_s),
        ended="proven" if proven else "converged" if search is None else search.ended,
        rounds=search.rounds if search else 0,
        columns=search.columns if search else 0,
        apart=search.tracks.apart if search else 0,
        took_s=stopwatch_s() - began_s,
    )


def first_prices(arrays: ProblemArrays, tracks: Tracks) -> Floats:
    """Return prices of the priced groups by the simple relaxation: with them the bound is about as high."""
    weights = Weights(miss_s=arrays.miss_weight_s, promise_s=arrays.promise_s)
    relaxed = relaxation(arrays, weights, lanes="kind")
    prices = group_prices(relaxed, FIRST_PASSES)[np.searchsorted(relaxed.groups, tracks.groups)]
    clipped: Floats = np.clip(prices, tracks.floor_s, tracks.ceiling_s)
    return clipped


def plan_columns(tracks: Tracks, problem: Problem, plan: Plan, report: Report) -> list[Column]:
    """Write the queues of a plan as columns, at what they really cost."""
    arrays = problem_arrays(problem)
    place = {arrays.groups[g]: at for at, g in enumerate(tracks.groups)}
    track = {arrays.instances[i]: k for k, members in enumerate(tracks.members) for i in members}
    cost_s = {row.group: row.penalty_s + problem.move_s * row.moved for row in report.rows}
    none, columns = np.zeros(0, dtype=np.int64), []
    for instance, queue in plan.queues.items():
        own = [group for group in queue if group in place]
        order = np.array([place[group] for group in own], dtype=np.int64)
        columns.append(Column(track[instance], order, none, math.fsum(cost_s[group] for group in own)))
    return columns


@dataclass(frozen=True, slots=True)
class _Clock:
    read_s: Callable[[], float]
    began_s: float
    limit_s: float
    notify: Callable[[Progress], None]

    @property
    def took_s(self) -> float:
        return self.read_s() - self.began_s

    @property
    def left_s(self) -> float:
        return self.limit_s - self.took_s

    def over(self, share: float = 1.0) -> Over:
        return lambda: self.took_s >= share * self.limit_s


class _Search:
    """Search for prices with a high bound."""

    def __init__(
        self, tracks: Tracks, clock: _Clock, penalty_s: float, bound_s: float, worth_s: Floats
    ) -> None:
        self.tracks, self._clock, self._penalty_s, self.bound_s = tracks, clock, penalty_s, bound_s
        self._worth_s, self._pricing = worth_s, Pricing(tracks)
        self._center, self._center_s = tracks.floor_s, -math.inf
        self.rounds, self.columns = 0, 0
        self.ended: Ended = "limit"

    def run(self, prices: Floats, known: list[Column], seed: int) -> None:
        """Ascend, then generate columns, marking groups and models whenever that converges."""
        self._pricing.best(0, prices)  # loads compiled code, so that the passes below are timed without that
        prices, kept = self._ascent(prices, seed)
        self._price(prices)
        master = Master(self.tracks, max(1.0, self._penalty_s / len(self.tracks.groups)))
        for column in (*known, *kept):
            master.add(column)
        while self._generate(master):
            self.columns = len(master.columns)
            if not self._mark(master):
                self.ended = "converged"
                return
        self.columns = len(master.columns)

    def _ascent(self, prices: Floats, seed: int) -> tuple[Floats, list[Column]]:
        rng, types = np.random.default_rng(seed), len(self.tracks.tracks)
        began_s = self._clock.took_s
        self._price(prices)
        pass_s = max(1e-6, self._clock.took_s - began_s)
        passes = int(np.clip(0.5 * ASCENT_SHARE * self._clock.left_s / pass_s, 10, PASSES_MAX))
        over = self._clock.over(ASCENT_SHARE)

        def order(turn: int) -> Ints:
            self._notify(f"pass {turn + 1} of {passes}")
            return rng.permutation(types)

        return ascend(self._pricing, prices, self._worth_s, passes, order, over)

    def _generate(self, master: Master) -> bool:
        """Generate columns until prices are nearly the best; False if the limit or the proof came first."""
        while self._clock.left_s > 0 and self.bound_s < self._penalty_s * (1.0 - PROVEN):
            self.rounds += 1
            value_s, duals, _ = master.solve(self._clock.left_s)
            if not math.isfinite(value_s):
                return False
            value_s += self.tracks.apart_s
            if value_s - self._center_s <= CONVERGED * abs(value_s):
                return True
            duals = np.clip(duals, self.tracks.floor_s, self.tracks.ceiling_s)
            weight, added = SMOOTHING, 0
            while not added:
                columns = self._price(weight * self._center + (1.0 - weight) * duals)
                added = sum([master.add(column) for column in columns])
                if self._clock.left_s <= 0:
                    return False
                if not added and weight == 0.0:
                    return True
                weight = weight / 2 if weight > 0.2 else 0.0
            self._notify(f"round {self.rounds}")
        return False

    def _price(self, prices: Floats) -> list[Column]:
        """Price queues of all types; keeps the prices if they have the best bound, none if time is over."""
        values, columns = np.zeros(len(self.tracks.tracks)), []
        for k in range(len(values)):
            if self._clock.left_s <= 0:
                return []
            values[k], found = self._pricing.best(k, prices)
            columns.append(Column.of(self.tracks, k, found))
        value_s = bound_at(self.tracks, prices, values) + self.tracks.apart_s
        value_s = value_s * (1.0 - ROUNDED) - ROUNDED
        if value_s > self._center_s:
            self._center, self._center_s = prices, value_s
        self.bound_s = max(self.bound_s, value_s)
        return columns

    def _mark(self, master: Master) -> bool:
        """Mark what the master program uses more often than any plan; False if there is nothing to mark."""
        _, _, used = master.solve(self._clock.left_s)
        marks = choose_marks(self.tracks, master.columns, used, self._worth_s)
        if not any(groups or models for groups, models in marks):
            return False
        self.tracks = marked(self.tracks, marks)
        self._pricing = Pricing(self.tracks)
        gone = [at for at, column in enumerate(master.columns) if contradicts(self.tracks, column)]
        master.drop(np.array(gone, dtype=np.int64))
        self._center_s = -math.inf
        self._price(self._center)
        return True

    def _notify(self, stage: str) -> None:
        self._clock.notify(Progress(stage=stage, bound_s=self.bound_s, took_s=self._clock.took_s))
