"""Readers placed with and without their bound: `make bench ARGS="streaming-placed"`.

An A100 and an A10 with Llama-3-8B; Gamma arrivals of CV 3. Three requests of ten are read at 20 tokens per
second, three at 12, a fifth are answers due in 20 s, a fifth batch. A load of 1 is the rate at which readers
alone would fill the batches that keep up with them (`qlm.rct_estimator.readers`), by the profiles.

All policies have equal requests of equal seeds; the last table has paired differences to the first policy.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Final

import numpy as np

from qlm.cli.scenario.file import load_scenario
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.readers import paced_state
from qlm.rct_estimator.workload import Workload as Demand
from qlm.simulator.results import SimulationResult
from qlm.simulator.rules import policy_named
from qlm.simulator.scenario import Scenario, Workload
from qlm.simulator.seeds import Seeds
from qlm.simulator.simulation import simulate

SCENARIO: Final = Path(__file__).parent / "scenarios" / "streaming-placed.yaml"
POLICIES: Final = ("qlm+bounded", "qlm+unbounded", "edf+rules+unbounded", "fcfs", "round-robin")
SHARES: Final = (0.3, 0.3, 0.2, 0.2)
"""Of the classes of the scenario, in its order; the last has no objective."""

COLUMNS: Final = ("met", "fast", "slow", "answer", "tokens/s", "batch ended, s")
STUDENT_95: Final = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""Two-sided 95 % quantile of Student's t by the number of pairs."""


def main(arguments: list[str] | None = None) -> int:
    """Print a table of all policies per load, and paired differences to the first."""
    options = _options(arguments)
    base = capacity_rps(load_scenario(SCENARIO, load=1.0))
    print(f"load 1.0 is {base:.1f} requests/s; seeds {options.seeds}, {options.seconds:g} s each")
    for load in options.loads:
        print(f"load {load:g}\n  {'':>22}" + "".join(f"{column:>16}" for column in COLUMNS), flush=True)
        table: dict[str, list[list[float]]] = {}
        for policy in options.policies:
            rows = [run(policy, load * base, options.seconds, seed) for seed in options.seeds]
            table[policy] = [figures(each) for each in rows]
            means = np.mean(table[policy], axis=0)
            print(f"  {policy:>22}" + "".join(f"{value:>16.3f}" for value in means), flush=True)
        print("\n".join(differences(table)), flush=True)
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='make bench ARGS="streaming-placed"', description=__doc__)
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--loads", type=float, nargs="+", default=[0.3, 0.6, 1.0, 1.2])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--seconds", type=float, default=60.0, help="length of the arrivals")
    return parser.parse_args(arguments)


def capacity_rps(scenario: Scenario) -> float:
    """Return the requests per second that end on all instances whose batches keep up with 20 tokens/s."""
    mu, sigma = np.log(134.0), 0.83
    output = float(np.exp(mu + sigma**2 / 2))
    prompt = float(np.exp(np.log(161.0) + sigma**2 / 2))
    spread = float(np.expm1(sigma**2))
    demand = Demand(
        prompt_tokens=prompt, output=Normal(output, output**2 * spread), prompt_var=prompt**2 * spread
    )
    return sum(1 / paced_state(each, demand, 20.0).request_s for each in scenario.fleet.profiles.values())


def mixed(rate: float, seconds: float) -> Callable[[Seeds], Workload]:
    """Return what draws the requests of a seed, `rate` per second for so many seconds."""
    draw = load_scenario(SCENARIO, load=rate).make_workload

    def make(seeds: Seeds) -> Workload:
        drawn = draw(seeds)
        cut = drawn.first(int(np.searchsorted(drawn.arrival_ns, seconds * 1e9)))
        return replace(cut, slo_class=seeds.rng("kinds").choice(len(SHARES), len(cut), p=SHARES))

    return make


def run(policy: str, rate: float, seconds: float, seed: int) -> SimulationResult:
    """Return the result of a policy, with its rules."""
    scenario = replace(load_scenario(SCENARIO, load=rate), make_workload=mixed(rate, seconds), horizon_s=1e5)
    return simulate(scenario, policy_named(policy), seed, stopwatch_s=time.perf_counter)


def figures(result: SimulationResult) -> list[float]:
    """Return the figures of `COLUMNS`."""
    outcomes, kind = result.outcomes, result.workload.slo_class
    met = outcomes.met & (outcomes.tokens > 0)
    last = len(SHARES) - 1
    first_ns, batch = result.workload.arrival_ns.min(), kind == last
    span_s = float(outcomes.ended_ns.max() - first_ns) / 1e9
    return [
        float(met[kind < last].mean()),
        *(float(met[kind == each].mean()) for each in range(last)),
        float(outcomes.tokens.sum()) / span_s,
        float((outcomes.ended_ns - result.workload.arrival_ns)[batch].mean()) / 1e9,
    ]


def differences(table: Mapping[str, Sequence[Sequence[float]]]) -> list[str]:
    """Return a line per other policy: the first one less it, with half the width of a 95 % interval."""
    first, *others = table
    lines = []
    for other in others:
        cells = []
        for mine, its in zip(zip(*table[first], strict=True), zip(*table[other], strict=True), strict=True):
            apart = [a - b for a, b in zip(mine, its, strict=True)]
            half = STUDENT_95.get(len(apart), 1.96) * stdev(apart) / len(apart) ** 0.5 if apart[1:] else 0.0
            cells.append(f"{f'{mean(apart):+.3f} ± {half:.3f}':>16}")
        lines.append(f"  {'less ' + other:>22}" + "".join(cells))
    return lines


if __name__ == "__main__":
    sys.exit(main())
