"""Compare plans that ignore promises, price them, or keep them first: `python -m benchmarks.motion.promises`.

In drawn problems of a busy controller (64 groups, 4 instances), a third of the groups with a deadline has the
promise that 90 % of its requests meet it. Each problem is planned three times with equal effort.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.planner_live import live
from qlm.planner.fast.settings import SearchBudget
from qlm.planner.fast.solve import solve_fast
from qlm.planner.problem import PROMISE_S, Problem, Promises
from qlm.planner.verify.referee import GroupRow, keeps_promise, verify

P_MET: Final = 0.9
PROMISED_SHARE: Final = 1 / 3
LOADS: Final = (0.3, 0.6, 0.9, 1.2, 1.5)
MOVES: Final = 60_000


@dataclass(frozen=True, slots=True)
class Result:
    """Sums over the groups of some plans: promised groups, kept promises, and requests.

    Attributes:
        short: Requests short of a promise.
        promised_met, promised_of: Requests with a promise that meet their deadline, and all of them.
        met, of: The same of all requests with a deadline.
    """

    promised: int
    kept: int
    short: float
    promised_met: float
    promised_of: int
    met: float
    of: int


def drawn(seed: int, load: float) -> Problem:
    """Draw a problem with promises."""
    problem, rng = live(seed, 64, 4, 4, load, shared=True), random.Random(seed)
    dated = sorted(group.id for group in problem.groups if group.deadline_s is not None)
    promised = {id for id in dated if rng.random() < PROMISED_SHARE}
    groups = (replace(each, p_met=P_MET) if each.id in promised else each for each in problem.groups)
    return replace(problem, groups=tuple(groups))


def planned(problems: Sequence[Problem], promises: Promises) -> Result:
    """Plan all problems in one way."""
    rows: list[GroupRow] = []
    for problem in problems:
        wanted = replace(problem, promise_s=PROMISE_S[promises])
        plan = solve_fast(wanted, budget=SearchBudget(moves=MOVES))
        rows += [row for row in verify(wanted, plan).rows if row.deadline_s is not None]
    promised = [row for row in rows if row.promised is not None]
    return Result(
        promised=len(promised),
        kept=sum(keeps_promise(row) for row in promised),
        short=sum(row.short_requests for row in promised),
        promised_met=sum(row.requests * row.p_met for row in promised),
        promised_of=sum(row.requests for row in promised),
        met=sum(row.requests * row.p_met for row in rows),
        of=sum(row.requests for row in rows),
    )


def main(arguments: Sequence[str]) -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.motion.promises", description=__doc__)
    parser.add_argument("--problems", type=int, default=6, help="drawn per load [%(default)s]")
    parser.add_argument("--loads", type=float, nargs="+", default=LOADS, help="[%(default)s]")
    options = parser.parse_args(arguments)
    print("| load | promises | kept | requests short | promised in time | all in time |")
    print("|---|---|---|---|---|---|")
    for load in options.loads:
        problems = [drawn(seed, load) for seed in range(options.problems)]
        for promises in PROMISE_S:
            r = planned(problems, promises)
            print(
                f"| {load:g} | {promises} | {r.kept} of {r.promised} | {r.short:.0f} of {r.promised_of} "
                f"| {100 * r.promised_met / r.promised_of:.1f} % | {100 * r.met / r.of:.1f} % |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
