"""The fast solver against the baselines: `python -m benchmarks.planner --part baselines`.

Each problem is a draw of `planner_problems.medium`, which all methods get as it is: half of them have present
queues and a price of moving, so that the fast solver plans again where the baselines plan anew.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.planner_problems import medium
from benchmarks.planner_timing import quantiles, timed
from qlm.planner.methods import Limits, plan_by
from qlm.planner.problem import Problem
from qlm.planner.verify.referee import verify

BASELINES = ("fcfs", "edf", "sjf", "priority-fcfs", "group-greedy", "round-robin", "random")
"""In milliseconds; SHEPHERD takes up to seconds."""

GROUPS = (20, 200)

ROUNDED = 1e-9
"""Largest excess that is no loss: this share, and 1e-6 s."""


@dataclass(frozen=True, slots=True)
class AgainstRow:
    """One problem.

    Attributes:
        seed: Of the problem.
        groups: In it.
        queued: Whether groups stand in present queues.
        fast_s: Penalty by the referee.
        best_s: That of the best baseline.
        best: Its name.
        fast_took_s: Seconds of the processor.
    """

    seed: int
    groups: int
    queued: bool
    fast_s: float
    best_s: float
    best: str
    fast_took_s: float

    @property
    def lost(self) -> bool:
        """True if the baseline is better."""
        return self.fast_s > self.best_s * (1 + ROUNDED) + 1e-6


def run(problems: int, with_shepherd: int, first_seed: int) -> dict[str, Any]:
    """Print what is lost and by how much the rest is won; the first `with_shepherd` know SHEPHERD, too."""
    rows = []
    for number in range(problems):
        names = (*BASELINES, "shepherd") if number < with_shepherd else BASELINES
        rows.append(against(first_seed + number, names))
        if rows[-1].lost:
            print(_lost_line(rows[-1]), flush=True)
    show(rows)
    return {"rows": [asdict(row) for row in rows]}


def groups_of(seed: int) -> int:
    """Number of groups of a problem: all sizes come, in no order."""
    least, most = GROUPS
    return least + seed * 67 % (most - least + 1)


def against(seed: int, baselines: Sequence[str]) -> AgainstRow:
    """Plan one problem by all methods."""
    problem = medium(seed, groups_of(seed))
    fast, took = timed(lambda: plan_by("fast", problem, Limits()))
    report = verify(problem, fast)
    if report.violations:
        raise AssertionError(f"seed {seed}: {report.violations}")
    best_s, best = min((_penalty_s(problem, name), name) for name in baselines)
    return AgainstRow(
        seed=seed,
        groups=len(problem.groups),
        queued=any(instance.queue for instance in problem.instances),
        fast_s=report.penalty_s,
        best_s=best_s,
        best=best,
        fast_took_s=took.cpu_s,
    )


def _penalty_s(problem: Problem, name: str) -> float:
    penalty_s = plan_by(name, problem, Limits()).penalty_s
    assert penalty_s is not None
    return penalty_s


def show(rows: Sequence[AgainstRow]) -> None:
    """Print the summary."""
    lost = [row for row in rows if row.lost]
    print(f"fast against the best baseline: {len(rows)} problems, {len(lost)} lost")
    print("                 problems   fast / best baseline: P5    P25    P50    P75    P95    max")
    for name, queued in (("from scratch", False), ("re-planned", True)):
        chosen = [row for row in rows if row.queued == queued and row.best_s > 0]
        shown = quantiles([row.fast_s / row.best_s for row in chosen], (0.05, 0.25, 0.5, 0.75, 0.95, 1.0))
        print(f"{name:16} {len(chosen):8}   {'':18}" + " ".join(f"{each:6.3f}" for each in shown))
    free = [row for row in rows if row.best_s <= 0]
    print(f"best baseline without any penalty: {len(free)}, fast too in {sum(not r.lost for r in free)}")
    print("best baseline: " + ", ".join(f"{n} {c}" for n, c in Counter(r.best for r in rows).most_common()))
    took = quantiles([row.fast_took_s for row in rows], (0.5, 0.95, 1.0))
    print("fast took, s of the processor: median {:.3f}, P95 {:.3f}, max {:.3f}\n".format(*took))


def _lost_line(row: AgainstRow) -> str:
    return (
        f"lost: seed {row.seed}, {row.groups} groups{', queued' if row.queued else ''}: "
        f"fast {row.fast_s:.1f} s, {row.best} {row.best_s:.1f} s ({row.fast_s / max(row.best_s, 1e-9):.4f})"
    )
