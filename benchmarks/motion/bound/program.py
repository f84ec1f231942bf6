"""Linear program of the most requests that meet their objectives; `docs/motion-bound.md` proves it a bound.

Time is divided into buckets. Columns: the share of a request that each pool serves; the work of requests with
one window, by cut, in each bucket; the time that a pool gives a model in a bucket; the number of instances of
a pool that have started a model until its end.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from benchmarks.motion.bound.demand import Demand
from benchmarks.motion.bound.fleet import Pool
from benchmarks.motion.bound.rows import LinearProgram
from benchmarks.motion.bound.work import FloatArray, Part

Window = tuple[int, int]
"""First and last bucket."""

Places = dict[tuple[int, int], dict[int, int]]
"""Columns by bucket, of a pool and a model."""

SLACK: Final = 1e-6
"""Tolerance of the solver, of a share and of work."""


class Program:
    """The program of some demands on some pools.

    Args:
        edges_s: Edges of the buckets.
        time_limit_s: Limit of the solver.
    """

    def __init__(
        self, demands: Sequence[Demand], pools: Sequence[Pool], edges_s: FloatArray, time_limit_s: float
    ) -> None:
        self._lp = LinearProgram(time_limit_s)
        self._pools = pools
        self._edges_s = edges_s
        self._time: Places = {}
        self._work: dict[tuple[int, int, int, int], list[int]] = {}
        self._able = 0
        for p, pool in enumerate(pools):
            self._give_time(p, pool)
        self._serve(demands)
        for (p, m, bucket, _), columns in self._work.items():
            self._lp.row([*columns, self._time[p, m][bucket]], [*[1.0] * len(columns), -1.0], 0.0)

    def most(self) -> float:
        """Return the largest number of met objectives, requests divided."""
        found = self._lp.most()
        return self._able if found is None else min(self._able, found + SLACK * (1 + self._able))

    def _give_time(self, p: int, pool: Pool) -> None:
        """A pool has one model awake per instance."""
        widths_s = np.diff(pool.available_s).tolist()
        started = {m: self._start(p, pool, m, widths_s) for m in pool.prices}
        before: list[int] = []
        for t, width_s in enumerate(widths_s):
            given = [self._time[p, m][t] for m in pool.prices]
            self._lp.row(given, [1.0] * len(given), pool.size * width_s)
            total = self._lp.column(math.inf)
            self._lp.row([*given, *before, total], [*[1.0] * (len(given) + len(before)), -1.0], 0.0)
            before = [total]
            costs = [pool.starts[m].costs_s for m in pool.prices]
            until_s = pool.size * float(pool.available_s[t + 1])
            self._lp.row([total, *(started[m][t] for m in pool.prices)], [1.0, *costs], until_s)

    def _start(self, p: int, pool: Pool, m: int, widths_s: Sequence[float]) -> list[int]:
        """A model serves where it was awake at first, or was started; return its columns of starts."""
        awake, lp = pool.awake.get(m, 0), self._lp
        times = self._time[p, m] = {}
        started: list[int] = []
        for t, width_s in enumerate(widths_s):
            first_s = self._first_s(pool, m, t)
            started.append(lp.column(pool.size - awake if first_s > 0 else 0.0))
            times[t] = lp.column(pool.size * width_s)
            lp.row([times[t], started[t]], [1.0, -first_s], awake * width_s)
            if t:
                lp.row([started[t - 1], started[t]], [1.0, -1.0], 0.0)
        return started

    def _first_s(self, pool: Pool, m: int, t: int) -> float:
        """Return the most time in a bucket behind the earliest first start of a model."""
        width_s = float(pool.available_s[t + 1] - pool.available_s[t])
        behind_s = float(self._edges_s[t + 1]) - pool.starts[m].earliest_s
        return min(width_s, max(0.0, behind_s / pool.slowness_min))

    def _serve(self, demands: Sequence[Demand]) -> None:
        """A request is served at most once; the work of its parts is done within their windows."""
        needs: dict[tuple[int, int, Window], list[tuple[int, FloatArray]]] = {}
        for demand in demands:
            shares = []
            for p, pool in enumerate(self._pools):
                if not _able(demand, pool):
                    continue
                shares.append(self._lp.column(1.0, gain=1.0))
                of_model = pool.prices[demand.model]
                for part in demand.parts:
                    if part.end_s < math.inf:
                        key = (p, demand.model, self._window(part))
                        needs.setdefault(key, []).append((shares[-1], of_model.of(part)))
            if shares:
                self._able += 1
                self._lp.row(shares, [1.0] * len(shares), 1.0)
        for (p, m, window), served in needs.items():
            self._do_work(p, m, window, served)

    def _do_work(self, p: int, m: int, window: Window, served: Sequence[tuple[int, FloatArray]]) -> None:
        work_s = np.array([each for _, each in served])
        for cut in _undominated(work_s):
            columns = [self._lp.column(math.inf) for _ in range(window[0], window[1] + 1)]
            for t, column in enumerate(columns, window[0]):
                self._work.setdefault((p, m, t, cut), []).append(column)
            values = [*work_s[:, cut].tolist(), *[-1.0] * len(columns)]
            self._lp.row([*(share for share, _ in served), *columns], values, 0.0)

    def _window(self, part: Part) -> Window:
        last = len(self._edges_s) - 2
        first = int(np.searchsorted(self._edges_s, part.begin_s, side="right")) - 1
        end = int(np.searchsorted(self._edges_s, part.end_s, side="left")) - 1
        return min(max(first, 0), last), min(max(end, first, 0), last)


def _able(demand: Demand, pool: Pool) -> bool:
    """Return whether a pool could serve a request in time if it did nothing else."""
    if demand.model not in pool.prices:
        return False
    of_model, slowness = pool.prices[demand.model], pool.slowness_min
    begin_s = demand.parts[0].begin_s
    if not pool.awake.get(demand.model, 0):
        begin_s = max(begin_s, pool.starts[demand.model].earliest_s)
    return all(
        begin_s + slowness * of_model.alone_s(demand.parts[: n + 1]) <= part.end_s + 1e-9
        for n, part in enumerate(demand.parts)
    )


def _undominated(work_s: FloatArray) -> list[int]:
    """Return the cuts that ask for more work than each other one, for one of the requests."""
    kept: list[int] = []
    for cut in np.argsort(-work_s.sum(axis=0), kind="stable").tolist():
        if not any((work_s[:, other] >= work_s[:, cut]).all() for other in kept):
            kept.append(cut)
    return kept
