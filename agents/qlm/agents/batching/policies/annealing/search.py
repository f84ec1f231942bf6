"""Algorithm 1 of SLO-aware annealing: two starts, an early stop, and the search from the better one."""

from collections.abc import Sequence
from math import inf
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from qlm.agents.batching.policies.annealing.compiling import annealer, can_compile
from qlm.agents.batching.policies.annealing.jobs import Jobs
from qlm.agents.batching.policies.annealing.kernel import DRAWS, score

HOTTEST: Final = 500.0
COLDEST: Final = 20.0
DECAY: Final = 0.95
MOVES: Final = 100
"""Temperatures, and moves at each (section 5.1): 63 temperatures, 6 300 moves."""

PER_MILLE: Final = 1000.0
"""Unit of the change of G in exp(change / T): thousandths of G, so that a loss of half is taken once in e at
the first temperature, and one of 2 % at the last (ours). The paper states none, and plain changes are so far
below T that every move would be taken. In percent the search stays a random walk:
docs/batch-policy-annealing.md."""


class Solution(NamedTuple):
    """An order in batches.

    Attributes:
        batches: Jobs of each batch, in order of execution; within a batch the order means nothing.
        met: Jobs that are expected to meet their objective.
        latency_s: Sum of the latencies from arrival, seconds.
    """

    batches: tuple[tuple[int, ...], ...]
    met: int
    latency_s: float

    @property
    def value(self) -> float:
        """G of equation 2; 0 without jobs."""
        return self.met / self.latency_s if self.latency_s > 0 else 0.0


class Schedule(NamedTuple):
    """Temperatures and draws of the moves.

    Attributes:
        temperatures: T of each move.
        draws: `kernel.DRAWS` of each move, in one sequence.
    """

    temperatures: npt.NDArray[np.float64]
    draws: npt.NDArray[np.float64]

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> "Schedule":
        """Draw the moves."""
        levels = 1 + int(np.log(COLDEST / HOTTEST) / np.log(DECAY))
        draws = rng.random((levels * MOVES, DRAWS))
        # T log(u) < change is u < exp(change / T) without an exponential per move; 1 - u is never 0.
        draws[:, -1] = np.log1p(-draws[:, -1])
        return cls(np.repeat(HOTTEST * DECAY ** np.arange(levels), MOVES), draws.ravel())


class Search:
    """The search with its draws, which are the same in each: equal jobs give an equal solution."""

    def __init__(
        self,
        rng: np.random.Generator,
        *,
        early_stop: bool = True,
        unit: float = PER_MILLE,
        compiled: bool | None = None,
    ) -> None:
        """Draw the moves.

        Args:
            rng: Source of the draws; it is read here only.
            early_stop: Stop if the start by latency meets all objectives, as the paper does.
            unit: Unit of changes of G.
            compiled: Run compiled code; None for wherever numba is installed.
        """
        compiled = can_compile() if compiled is None else compiled
        schedule = Schedule.drawn(rng)
        self._schedule: list[Any] = [*schedule] if compiled else [each.tolist() for each in schedule]
        self._early_stop, self._unit, self._compiled = early_stop, unit, compiled

    def compile(self) -> None:
        """Compile now what the first search compiles else; it takes seconds."""
        annealer(compiled=self._compiled)

    def __call__(self, jobs: Jobs) -> Solution:
        """Return the best order and batches found."""
        by_e2e = in_order(jobs, np.argsort(jobs.e2e_s[-1], kind="stable").tolist())
        # With batches of one this is the optimum (section 4.3); with larger ones it need not be, and the
        # paper stops all the same.
        if self._early_stop and by_e2e.met == jobs.size:
            return by_e2e
        start = max(in_order(jobs, range(jobs.size)), by_e2e, key=lambda each: each.value)
        return self._from(jobs, start) if jobs.size > 1 else start

    def _from(self, jobs: Jobs, start: Solution) -> Solution:
        n = jobs.size
        places: list[Any] = [*_written(start.batches, n), [0] * n, [0] * (n + 2)]
        prices: list[Any] = [_begun(jobs), _begun(jobs)]
        tables: list[Any] = [jobs.e2e_s.ravel(), jobs.latest_s.ravel(), jobs.tokens]
        if self._compiled:
            places = [np.array(each, dtype=np.int64) for each in places]
            prices = [np.array(each, dtype=np.float64) for each in prices]
        else:
            tables = [each.tolist() for each in tables]
        order, first, best_order, best_first = places
        # Where all fit together, no batch has to be added up.
        room = inf if jobs.tokens.sum() <= jobs.room else jobs.room
        count = annealer(compiled=self._compiled)(
            order, first, len(start.batches), n, jobs.batch_max, *tables, room, self._unit, *self._schedule,
            *prices, best_order, best_first,
        )  # fmt: skip
        batches = [best_order[best_first[k] : best_first[k + 1]] for k in range(count)]
        return solution(jobs, [[int(job) for job in batch] for batch in batches])


def in_order(jobs: Jobs, order: Sequence[int]) -> Solution:
    """Return jobs in this order, in batches as large as `batch_max` and the KV cache allow."""
    batches: list[list[int]] = []
    left = 0.0
    for job in order:
        takes = float(jobs.tokens[job])
        if not batches or len(batches[-1]) >= jobs.batch_max or takes > left:
            batches.append([])
            left = jobs.room
        batches[-1].append(job)
        left -= takes
    return solution(jobs, batches)


def solution(jobs: Jobs, batches: Sequence[Sequence[int]]) -> Solution:
    """Return batches with their figures."""
    order, first = _written(batches, jobs.size)
    price, done = _begun(jobs), len(batches)
    score(order, first, 0, done, jobs.size, jobs.e2e_s.ravel(), jobs.latest_s.ravel(), price, price)
    _, latency_s, met = price[3 * done : 3 * done + 3]
    return Solution(tuple(tuple(batch) for batch in batches), int(met), float(latency_s))


def _written(batches: Sequence[Sequence[int]], n: int) -> tuple[list[int], list[int]]:
    """Return `order` and `first` of the kernel."""
    first = np.cumsum([0, *(len(batch) for batch in batches)]).tolist()
    return [job for batch in batches for job in batch], first + [n] * (n + 2 - len(first))


def _begun(jobs: Jobs) -> list[Any]:
    """Return the price of a solution of the kernel, before its first batch."""
    return [jobs.begin_s, jobs.waited_s, 0.0, *[0.0] * 3 * jobs.size]
