"""SLO attainment of each policy, side by side: `make bench ARGS="attainment"`.

The fixed ServeGen scenario (or another) runs at loads relative to the capacity of FCFS. This is measured
first: the rate of completions with a backlog on all instances. All policies see the same requests (paired
seeds), planning time is charged, and attainment is over all submitted requests. Needs QLM_TRACES.
"""

import argparse
import math
import statistics
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import setups
from qlm.cli.scenario.workload import draw_scenario
from qlm.simulator.policies import POLICIES
from qlm.simulator.report import summary
from qlm.simulator.simulation import simulate

SCENARIO = Path(__file__).parent / "scenarios" / "servegen.yaml"
LOADS = (0.6, 0.8, 1.0, 1.2, 1.5)
BASELINES = ("edf", "sjf", "fcfs", "group-greedy", "shepherd")
SATURATING = 3.0
"""Factor on the scenario's rate at which FCFS has a backlog on all instances from the start."""

STUDENT_T = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}
"""Two-sided 95 % quantiles by number of seeds."""


@dataclass(frozen=True, slots=True)
class Met:
    """Result of one simulation.

    Attributes:
        load: Load relative to FCFS's capacity.
        attainment: Attainment over all submitted requests.
        by_class: Attainment by SLO class.
        swaps: Model swaps of all tiers.
        evictions: Preemptions of running requests.
        lowest_p99_s: P99 of the time from arrival to the end of the answer, of the least urgent class.
    """

    policy: str
    load: float
    seed: int
    attainment: float
    by_class: dict[str, float]
    swaps: int
    evictions: int
    lowest_p99_s: float


def met(scenario: Path, policy: str, load: float, factor: float, seed: int) -> Met:
    """Simulate once, with the scenario's rate times `factor`."""
    drawn = draw_scenario(scenario, seed, load=factor)
    result = simulate(drawn.scenario, POLICIES[policy], seed, stopwatch_s=time.perf_counter)
    total = summary(result, drawn.streams)
    lowest = max(drawn.scenario.slo_classes, key=lambda each: each.slo.target_ms or math.inf)
    return Met(
        policy=policy,
        load=load,
        seed=seed,
        attainment=total["attainment"],
        by_class=dict(total["attainment_by_class"]),
        swaps=total["swaps"],
        evictions=total["evictions"],
        lowest_p99_s=total["latency_by_class"][lowest.name]["completion_p99_s"],
    )


def fcfs_capacity(scenario: Path, seed: int) -> float:
    """Measure the rate that FCFS sustains, as a factor on the scenario's rate."""
    drawn = draw_scenario(scenario, seed, load=SATURATING)
    result = simulate(drawn.scenario, POLICIES["fcfs"], seed, stopwatch_s=time.perf_counter)
    ended_ns, last_ns = result.outcomes.ended_ns, int(result.workload.arrival_ns[-1])
    within = int(((ended_ns >= 0) & (ended_ns <= last_ns)).sum())
    return SATURATING * within / len(result.workload)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all simulations and print the table."""
    options = _options(arguments)
    factor = options.capacity or fcfs_capacity(options.scenario, options.seeds[0])
    print(f"FCFS completes {factor:.2f} times the scenario's rate: that is load 1.0")
    policies = ("qlm", *options.baselines)
    jobs = [
        (options.scenario, policy, load, load * factor, seed)
        for load in options.loads
        for seed in options.seeds
        for policy in policies
    ]
    with ProcessPoolExecutor(options.jobs) as pool:
        found = []
        for one in pool.map(met, *zip(*jobs, strict=True)):
            found.append(one)
            print(f"  {one.policy:12} load {one.load:g} seed {one.seed}: {one.attainment:.4f}", flush=True)
    setups.save(options.out, {"capacity": factor, "found": [asdict(one) for one in found]})
    Console(width=130).print(_table(found, policies))
    return 0


def _table(found: Iterable[Met], policies: Sequence[str]) -> Table:
    """Return one row per load and policy; the gain is over the load's best baseline, paired by seed."""
    table = Table(
        "load", "policy", "attainment", "gain over best", "by class", "swaps", "evictions", "P99 of lowest, s"
    )
    runs = list(found)
    for load in sorted({one.load for one in runs}):
        at = {
            policy: [one for one in runs if one.load == load and one.policy == policy] for policy in policies
        }
        means = {policy: statistics.fmean(one.attainment for one in ones) for policy, ones in at.items()}
        best = max((policy for policy in policies if policy != "qlm"), key=lambda policy: means[policy])
        for policy, ones in at.items():
            gains = [one.attainment - other.attainment for one, other in zip(ones, at[best], strict=True)]
            classes = {
                name: statistics.fmean(one.by_class[name] for one in ones)
                for name in sorted(ones[0].by_class)
            }
            table.add_row(
                f"{load:g}",
                policy + (" (best)" if policy == best else ""),
                f"{means[policy]:.4f}",
                _interval(gains) if policy == "qlm" else "",
                " ".join(f"{name} {share:.3f}" for name, share in classes.items()),
                f"{statistics.fmean(one.swaps for one in ones):.1f}",
                f"{statistics.fmean(one.evictions for one in ones):.0f}",
                f"{statistics.fmean(one.lowest_p99_s for one in ones):.0f}",
            )
    return table


def _interval(gains: Sequence[float]) -> str:
    mean = statistics.fmean(gains)
    if len(gains) not in STUDENT_T:
        return f"{mean:+.4f}"
    half = STUDENT_T[len(gains)] * statistics.stdev(gains) / len(gains) ** 0.5
    return f"{mean:+.4f} ± {half:.4f}"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="attainment", description=__doc__)
    parser.add_argument("--scenario", type=Path, default=SCENARIO)
    parser.add_argument("--loads", type=float, nargs="+", default=LOADS)
    parser.add_argument("--seeds", type=int, nargs="+", default=(1, 2, 3, 4, 5))
    parser.add_argument("--baselines", nargs="+", default=BASELINES, choices=sorted(POLICIES))
    parser.add_argument("--capacity", type=float, help="capacity of FCFS, as a factor; measured by default")
    parser.add_argument("--jobs", type=int, default=1, help="parallel simulations")
    parser.add_argument("--out", type=Path, default=Path("build/attainment.json"))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
