"""Share of tasks in time, by the rule that gives their calls deadlines: `make bench ARGS="tasks"`.

One A100 with Mistral-7B runs 16 sequences at once. Tasks of coding agents arrive in bursts; each of their 3
to 30 calls arrives when the one before has ended and the agent's tools have run. Load 1.0 is the rate at
which the engine serves calls while more wait than it can take. All rules have equal tasks; each seed is
simulated under each rule, and differences are taken seed by seed, with 95 % intervals.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.tasks.drawn import Size, draw
from benchmarks.tasks.rules import RULES
from qlm.cli.comparison.statistics import interval
from qlm.cli.scenario.file import load_scenario
from qlm.simulator.results import SimulationResult
from qlm.simulator.rules import policy_named
from qlm.simulator.scenario import Scenario
from qlm.simulator.simulation import simulate

SCENARIO: Final = Path(__file__).parents[1] / "scenarios" / "tasks.yaml"
SEQS_MAX: Final = 16
AT_ONCE_PER_S: Final = 1_000.0
"""Rate at which all tasks are there at the start."""
BUSY: Final = (0.1, 0.6)
"""Calls, as shares in order of their ends, between which more wait than the engine takes."""
OURS: Final = "slo.task"


@dataclass(frozen=True, slots=True)
class Cell:
    """A simulation, but for its rule and its seed.

    Attributes:
        policy: Policy of the cluster.
        tasks: Number of tasks.
        tasks_per_s: Their rate.
    """

    policy: str
    tasks: int
    tasks_per_s: float


def main(arguments: Sequence[str]) -> int:
    """Simulate all cells, print a line of JSON for each, then a table."""
    options = _options(arguments)
    capacity = options.capacity or measured_capacity(options.policy, options.tasks, options.seeds[0])
    print(f"load 1.0 is {capacity:.3f} tasks/s", flush=True)
    for load in options.loads:
        shares: dict[str, list[float]] = {rule: [] for rule in options.rules}
        cell = Cell(options.policy, options.tasks, capacity * load)
        for seed in options.seeds:
            for rule in options.rules:
                began_s = time.process_time()
                share = in_time(run(rule, cell, seed))
                shares[rule].append(share)
                took_s = round(time.process_time() - began_s, 1)
                row = {"load": load, "seed": seed, "rule": rule, "in_time": share, "cpu_s": took_s}
                print(json.dumps(row), flush=True)
        print(table(load, shares), flush=True)
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='make bench ARGS="tasks"', description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--loads", type=float, nargs="+", default=[0.3, 1.0])
    parser.add_argument("--tasks", type=int, default=100, help="tasks per simulation [%(default)s]")
    parser.add_argument("--rules", nargs="+", choices=tuple(RULES), default=tuple(RULES), metavar="RULE")
    parser.add_argument("--policy", default="qlm", help="policy of the cluster [%(default)s]")
    parser.add_argument("--capacity", type=float, help="tasks per second of load 1.0; measured without")
    return parser.parse_args(arguments)


def measured_capacity(policy: str, tasks: int, seed: int) -> float:
    """Return the tasks per second that the engine serves while more calls wait than it can take."""
    result = run("task's deadline", Cell(policy, tasks, AT_ONCE_PER_S), seed)
    ended_s = np.sort(result.outcomes.ended_ns) / 1e9
    first, last = (int(share * len(ended_s)) for share in BUSY)
    calls_per_s = (last - first) / float(ended_s[last] - ended_s[first])
    return calls_per_s * tasks / len(ended_s)


def run(rule: str, cell: Cell, seed: int) -> SimulationResult:
    """Simulate one cell."""
    scenario = cluster_of(rule, Size(cell.tasks, cell.tasks_per_s))
    return simulate(scenario, policy_named(cell.policy), seed, stopwatch_s=time.perf_counter)


def cluster_of(rule: str, size: Size) -> Scenario:
    """Return one instance that serves tasks under a rule."""
    scenario = load_scenario(SCENARIO, load=1.0)
    known = scenario.fleet.profiles
    profiles = {key: replace(each, seqs_max=SEQS_MAX) for key, each in known.items()}
    return replace(
        scenario,
        fleet=replace(scenario.fleet, profiles=profiles),
        queue_depth_max=1_000_000,
        make_workload=lambda seeds: draw(size, seeds),
        call_objectives=RULES[rule],
    )


def in_time(result: SimulationResult) -> float:
    """Return the share of tasks whose last call ended before their deadline."""
    tasks = result.workload.tasks
    assert tasks is not None
    last = tasks.calls_left() == 1
    ended_ns = result.outcomes.ended_ns[last]
    return float(np.mean((ended_ns >= 0) & (ended_ns <= tasks.deadline_ns[last])))


def table(load: float, shares: dict[str, list[float]]) -> str:
    """Return the share in time of each rule, and how much more `slo.task` has, seed by seed."""
    lines = [f"\nload {load:g}: share of tasks in time, and points that {OURS} has more"]
    for rule, found in shares.items():
        more = [100 * (ours - other) for ours, other in zip(shares.get(OURS, found), found, strict=True)]
        beyond = "" if rule == OURS else f"   {_difference(more)}"
        lines.append(f"  {rule:24} {statistics.fmean(found):.3f}{beyond}")
    return "\n".join(lines) + "\n"


def _difference(points: Sequence[float]) -> str:
    mean = f"{statistics.fmean(points):+.1f}"
    ends = interval(points)
    return mean if ends is None else f"{mean} ({ends[0]:+.1f} to {ends[1]:+.1f})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
