"""Time and quality by the size of the problem: `python -m benchmarks.planner --part growth`.

`planner_problems.live` from 10 groups on 2 instances to 1 600 on 100, load 1.2. The search has 600 moves per
group with a deadline, at least 160 000, as the solver gives itself without limits; then ten times as many.
"""

from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.planner_problems import live
from benchmarks.planner_second import warm_up
from benchmarks.planner_timing import gap_to, timed
from qlm.planner.bound.lower_bound import lower_bound
from qlm.planner.fast.settings import DEFAULT_SETTINGS as S
from qlm.planner.fast.settings import SearchBudget
from qlm.planner.fast.solve import solve_fast
from qlm.planner.problem import Problem
from qlm.planner.verify.referee import verify

SIZES = (
    (10, 2), (20, 2), (20, 4), (50, 4), (50, 10), (100, 8), (100, 25), (200, 12), (200, 50),
    (400, 25), (400, 100), (800, 50), (800, 100), (1600, 50), (1600, 100),
)  # fmt: skip
"""Groups and instances."""

MODELS = 12
SEED = 1
LONGER = 10


@dataclass(frozen=True, slots=True)
class GrowthRow:
    """One size; times are seconds of the processor."""

    groups: int
    instances: int
    models: int
    moves: int
    plan_s: float
    bound_took_s: float
    penalty_s: float
    gap: float
    longer_s: float
    worse_than_longer: float


def run(largest: int) -> dict[str, Any]:
    """Print the table."""
    warm_up()
    print(f"live({SEED}) by size; times are s of the processor, gaps over max(bound, 1 s per request)")
    print(
        "groups  instances  models     moves    plan s   bound s   gap to bound   10 times as long s  worse"
    )
    rows = []
    for groups, instances in SIZES:
        if groups <= largest:
            rows.append(grown(groups, instances))
            print(_line(rows[-1]), flush=True)
    print()
    return {"rows": [asdict(row) for row in rows]}


def grown(groups: int, instances: int) -> GrowthRow:
    """Measure one size; at most as many models as a third of the groups."""
    models = max(1, min(MODELS, groups // 3))
    problem = live(SEED, groups=groups, instances=instances, models=models)
    dated = sum(group.deadline_s is not None for group in problem.groups)
    moves = min(S.moves_max, max(S.moves_min, S.moves_per_group * dated))
    penalty_s, plan_s = _planned(problem, moves)
    bound_s, bound_took = timed(lambda: lower_bound(problem))
    longer_penalty_s, longer_s = _planned(problem, LONGER * moves)
    return GrowthRow(
        groups=groups,
        instances=instances,
        models=models,
        moves=moves,
        plan_s=plan_s,
        bound_took_s=bound_took.cpu_s,
        penalty_s=penalty_s,
        gap=gap_to(problem, penalty_s, bound_s),
        longer_s=longer_s,
        worse_than_longer=gap_to(problem, penalty_s, longer_penalty_s),
    )


def _planned(problem: Problem, moves: int) -> tuple[float, float]:
    plan, took = timed(lambda: solve_fast(problem, budget=SearchBudget(moves=moves)))
    report = verify(problem, plan)
    assert not report.violations, report.violations
    return report.penalty_s, took.cpu_s


def _line(row: GrowthRow) -> str:
    return (
        f"{row.groups:6} {row.instances:10} {row.models:7} {row.moves:9} {row.plan_s:9.3f}"
        f" {row.bound_took_s:9.3f} {row.gap:14.1%} {row.longer_s:19.2f} {row.worse_than_longer:6.2%}"
    )
