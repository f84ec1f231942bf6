"""Upper bound on the share of met objectives of a scenario; also as a command."""

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.motion.bound.demand import Demand, demands
from benchmarks.motion.bound.fleet import pools
from benchmarks.motion.bound.program import Program
from benchmarks.motion.bound.work import FloatArray
from qlm.cli.scenario.workload import draw_scenario
from qlm.simulator.scenario import Scenario, Workload
from qlm.simulator.seeds import Seeds

BUCKETS: Final = 120
"""Buckets of time; more make the bound tighter and slower."""

TIME_LIMIT_S: Final = 300.0
"""Limit of the solver; behind it, all requests count that could be in time alone."""


def upper_bound(
    scenario: Scenario, workload: Workload, *, buckets: int = BUCKETS, time_limit_s: float = TIME_LIMIT_S
) -> float:
    """Return a share of met objectives that no policy exceeds, whatever it knows.

    Args:
        scenario: The scenario.
        workload: All its requests.
        buckets: Number of buckets of time.
        time_limit_s: Limit of the solver.
    """
    asked = demands(scenario, workload)
    if not asked:
        return 1.0
    edges_s = edges(asked, buckets)
    most = Program(asked, pools(scenario, edges_s), edges_s, time_limit_s).most()
    # Objectives are met or not: parts of a request do not count.
    return (len(workload) - len(asked) + math.floor(most)) / len(workload)


def edges(asked: Sequence[Demand], buckets: int) -> FloatArray:
    """Return the edges of equal buckets from 0 to the last deadline."""
    ends_s = [part.end_s for demand in asked for part in demand.parts if part.end_s < math.inf]
    last_s = max([1.0, *ends_s])
    return np.linspace(0.0, last_s, buckets + 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the bound of a scenario at a load with a seed."""
    parser = argparse.ArgumentParser(prog="bound", description=__doc__)
    parser.add_argument("scenario", type=Path, help="scenario file")
    parser.add_argument("load", type=float, help="factor on all arrival rates")
    parser.add_argument("seed", type=int, help="seed of all randomness")
    parser.add_argument("--buckets", type=int, default=BUCKETS, help="buckets of time [%(default)s]")
    options = parser.parse_args(arguments)
    began_s = time.process_time()
    scenario = draw_scenario(options.scenario, options.seed, load=options.load).scenario
    bound = upper_bound(scenario, scenario.make_workload(Seeds(options.seed)), buckets=options.buckets)
    print(f"{bound:.5f} in {time.process_time() - began_s:.1f} s of the processor")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
