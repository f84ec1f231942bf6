"""Referee of the search: the best G over all orders and batches (SLO-aware annealing, section 4.3)."""

from itertools import combinations
from typing import Final, NamedTuple

from qlm.agents.batching.policies.annealing.jobs import Jobs
from qlm.agents.batching.policies.annealing.search import Solution, solution
from qlm.domain.errors import InvalidValueError

JOBS_MAX: Final = 10
"""Most jobs: 10 take seconds."""

Batches = tuple[tuple[int, ...], ...]


class _Prefix(NamedTuple):
    """Batches of some of the jobs, the others still to come.

    Attributes:
        start_s: When the next batch starts.
        latency_s: Sum of the latencies so far.
        met: Jobs in time so far.
        batches: The batches.
    """

    start_s: float
    latency_s: float
    met: int
    batches: Batches


def exhaustive(jobs: Jobs) -> Solution:
    """Return a solution of the highest G.

    It enumerates the batches of each order from the first on. Of two beginnings with the same jobs, one that
    starts the next batch no earlier, has no less latency and no more jobs in time is dropped: whatever
    follows, it ends no better. So nothing is left out that could be the best.

    Raises:
        InvalidValueError: There are more than `JOBS_MAX` jobs.
    """
    if jobs.size > JOBS_MAX:
        raise InvalidValueError("jobs", jobs.size, f"at most {JOBS_MAX}")
    everything = (1 << jobs.size) - 1
    fronts: list[list[_Prefix]] = [[] for _ in range(everything + 1)]
    fronts[0] = [_Prefix(jobs.begin_s, jobs.waited_s, 0, ())]
    for done in range(everything):
        front = fronts[done] = _undominated(fronts[done])
        left = [job for job in range(jobs.size) if not done >> job & 1]
        for batch in _batches(jobs, left):
            after = done | sum(1 << job for job in batch)
            fronts[after].extend(_extended(jobs, prefix, batch) for prefix in front)
    every = (solution(jobs, prefix.batches) for prefix in _undominated(fronts[everything]))
    return max(every, key=lambda each: (each.value, -each.latency_s))


def _batches(jobs: Jobs, left: list[int]) -> list[tuple[int, ...]]:
    """Return the batches that can come next; a job alone always fits."""
    sizes = range(1, min(jobs.batch_max, len(left)) + 1)
    return [
        batch
        for size in sizes
        for batch in combinations(left, size)
        if size == 1 or sum(float(jobs.tokens[job]) for job in batch) <= jobs.room
    ]


def _extended(jobs: Jobs, prefix: _Prefix, batch: tuple[int, ...]) -> _Prefix:
    row, start_s = len(batch) - 1, prefix.start_s
    took_s = [float(jobs.e2e_s[row, job]) for job in batch]
    return _Prefix(
        start_s=start_s + max(took_s),
        latency_s=prefix.latency_s + len(batch) * start_s + sum(took_s),
        met=prefix.met + sum(start_s <= jobs.latest_s[row, job] for job in batch),
        batches=(*prefix.batches, batch),
    )


def _undominated(prefixes: list[_Prefix]) -> list[_Prefix]:
    kept: list[_Prefix] = []
    for prefix in sorted(prefixes, key=lambda each: (each.start_s, each.latency_s, -each.met)):
        if not any(other.latency_s <= prefix.latency_s and other.met >= prefix.met for other in kept):
            kept.append(prefix)
    return kept
