"""Gaps of fast plans to proven optima: `python -m benchmarks.planner --part gap`."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.planner_exact import production_problem
from benchmarks.planner_timing import gap_to, quantiles, timed
from qlm.planner.exact.objective import sample_average
from qlm.planner.exact.scenarios import draw_scenarios
from qlm.planner.exact.solve import solve_exact, solve_on
from qlm.planner.fast.solve import solve_fast
from qlm.planner.problem import Problem
from qlm.planner.verify.referee import verify

GAP_MEAN_MAX, GAP_WORST_MAX = 0.01, 0.05
"""Wanted of the problems that are proven."""

SCENARIOS = 200


@dataclass(frozen=True, slots=True)
class GapRow:
    """One problem solved by both.

    Attributes:
        seed: Seed of the problem; odd ones are overloaded.
        proven: The exact plan is proven optimal.
        exact_s: Penalty of the exact plan, by the referee or on the scenarios.
        fast_s: Penalty of the fast plan.
        gap: Gap of the fast plan, over the exact penalty or 1 s per request.
        exact_took_s: Processor time of the exact method, seconds.
        fast_took_s: Processor time of the fast method, seconds.
    """

    groups: int
    seed: int
    proven: bool
    exact_s: float
    fast_s: float
    gap: float
    exact_took_s: float
    fast_took_s: float


def run(sizes: Sequence[int], problems: int, sampled: int, limit_s: float) -> dict[str, Any]:
    """Print the tables; `problems` of each size, the first `sampled` of them on scenarios, too."""
    expected, drawn = [], []
    for groups in sizes:
        for seed in range(problems):
            problem = production_problem(groups, seed)
            expected.append(expected_row(problem, seed, limit_s))
            if seed < sampled:
                drawn.append(sampled_row(problem, seed, limit_s))
    for title, rows in (("expected penalty", expected), (f"on {SCENARIOS} scenarios", drawn)):
        if rows:
            show(f"fast against exact, {title}", rows)
    return {"expected": [asdict(row) for row in expected], "sampled": [asdict(row) for row in drawn]}


def expected_row(problem: Problem, seed: int, limit_s: float) -> GapRow:
    """Compare the expected penalties of both plans, under the normal model, as the referee has them."""
    exact, exact_took = timed(lambda: solve_exact(problem, time_limit_s=limit_s))
    fast, fast_took = timed(lambda: solve_fast(problem))
    exact_s, fast_s = (verify(problem, plan).penalty_s for plan in (exact, fast))
    return GapRow(
        groups=len(problem.groups),
        seed=seed,
        proven=exact.method == "exact",
        exact_s=exact_s,
        fast_s=fast_s,
        gap=gap_to(problem, fast_s, exact_s),
        exact_took_s=exact_took.cpu_s,
        fast_took_s=fast_took.cpu_s,
    )


def sampled_row(problem: Problem, seed: int, limit_s: float) -> GapRow:
    """Compare mean penalties on the same scenarios; fast minimises the expectation, not these."""
    scenarios = draw_scenarios(problem, scenarios=SCENARIOS, seed=seed)
    exact, exact_took = timed(lambda: solve_on(problem, scenarios, time_limit_s=limit_s))
    fast, fast_took = timed(lambda: solve_fast(problem))
    fast_s = sample_average(problem, fast, scenarios)
    return GapRow(
        groups=len(problem.groups),
        seed=seed,
        proven=exact.proven,
        exact_s=exact.penalty_s,
        fast_s=fast_s,
        gap=gap_to(problem, fast_s, exact.penalty_s),
        exact_took_s=exact_took.cpu_s,
        fast_took_s=fast_took.cpu_s,
    )


def show(title: str, rows: Sequence[GapRow]) -> None:
    """Print a line per size, and whether all proven ones together are as wanted."""
    print(f"{title}; gap over max(exact, 1 s per request) of what is proven, %; s of the processor")
    print("groups  proven    gap mean   median    worst  optimal   exact median    max   fast median    max")
    for groups in sorted({row.groups for row in rows}):
        print(_line(str(groups), [row for row in rows if row.groups == groups]), flush=True)
    print(_line("all", rows))
    gaps = [row.gap for row in rows if row.proven]
    good = bool(gaps) and statistics.mean(gaps) <= GAP_MEAN_MAX and max(gaps) <= GAP_WORST_MAX
    worst = sorted((row for row in rows if row.proven), key=lambda row: -row.gap)[:3]
    print("largest: " + ", ".join(f"{row.groups} groups seed {row.seed} {row.gap:.2%}" for row in worst))
    print(f"wanted: mean {GAP_MEAN_MAX:.0%}, worst {GAP_WORST_MAX:.0%}: {'yes' if good else 'NO'}\n")


def _line(name: str, rows: Sequence[GapRow]) -> str:
    gaps = [row.gap for row in rows if row.proven]
    exact, fast = ([getattr(row, f"{each}_took_s") for row in rows] for each in ("exact", "fast"))
    optimal = sum(gap < 1e-6 for gap in gaps)
    mean = statistics.mean(gaps) if gaps else 0.0
    median, worst = quantiles(gaps, (0.5, 1.0))
    return (
        f"{name:>6} {len(gaps):3} of {len(rows):<3} {100 * mean:9.3f} {100 * median:8.3f} {100 * worst:8.3f}"
        f" {optimal:4} of {len(gaps):<3}"
        f" {statistics.median(exact):10.2f} {max(exact):6.2f}"
        f" {statistics.median(fast):13.3f} {max(fast):6.3f}"
    )
