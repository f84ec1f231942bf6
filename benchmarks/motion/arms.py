"""Simulate a scenario under one arm and print one JSON line.

`python -m benchmarks.motion.arms SCENARIO ARM LOAD SEED`. An arm is a policy of `qlm simulate`, with
rules as there: `edf+demote`, `edf+hold`, `edf+rules` for both. Scenarios with traces need `QLM_TRACES`.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from qlm.cli.scenario.workload import draw_scenario
from qlm.domain.errors import InvalidValueError
from qlm.simulator.policies import Policy
from qlm.simulator.report import summary
from qlm.simulator.results import SimulationResult
from qlm.simulator.rules import policy_named
from qlm.simulator.simulation import simulate
from qlm.simulator.workload.stream import StreamCounts


def main(arguments: Sequence[str]) -> int:
    """Run one simulation and print its figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.motion.arms", description=__doc__)
    parser.add_argument(
        "scenario", type=Path, help="scenario file, such as benchmarks/motion/scenarios/het.yaml"
    )
    parser.add_argument("arm", type=arm_name, metavar="ARM", help="policy with its rules, such as edf+demote")
    parser.add_argument("load", type=float, help="factor on all arrival rates")
    parser.add_argument("seed", type=int, help="seed of all randomness")
    parser.add_argument("--late-weight", type=float, help="operations.late_weight, if not the default")
    options = parser.parse_args(arguments)
    began_s = time.perf_counter()
    policy = policy_named(options.arm)
    if options.late_weight is not None:
        policy = replace(policy, late_weight=options.late_weight)
    figures = run(options.scenario, options.arm, options.load, options.seed, policy)
    print(json.dumps(figures | {"wall_s": round(time.perf_counter() - began_s, 1)}))
    return 0


def run(scenario: Path, arm: str, load: float, seed: int, policy: Policy | None = None) -> dict[str, Any]:
    """Simulate a scenario; return its arguments, attainment, rates and counts."""
    drawn = draw_scenario(scenario, seed, load=load)
    result = simulate(drawn.scenario, policy or policy_named(arm), seed, stopwatch_s=time.perf_counter)
    names = {"scenario": scenario.stem, "arm": arm, "load": load, "seed": seed}
    return names | figures(result, drawn.streams)


def figures(result: SimulationResult, streams: Sequence[StreamCounts]) -> dict[str, Any]:
    """Return attainment, rates and counts of a simulation."""
    total = summary(result, streams)
    return {
        "attainment": round(total["attainment"], 4),
        "by_class": {name: round(share, 3) for name, share in total["attainment_by_class"].items()},
        **_while_requests_arrive(result),
        "throughput_rps": round(total["throughput_rps"], 2),
        "by_instance": _requests_by_instance(result),
        "completion_p99_s": {
            name: round(latency["completion_p99_s"] or 0)
            for name, latency in total["latency_by_class"].items()
        },
        "swaps": total["swaps"],
        "swap_s": round(total["swap_seconds"]),
        "evictions": total["evictions"],
        "gpu_time": {use: round(share, 4) for use, share in total["gpu_time"].items()},
        "idle_longest_s": {use: round(lasts_s, 2) for use, lasts_s in total["idle_longest_s"].items()},
        "busy_s": {
            instance: round(seconds["useful"] + seconds["again"], 1)
            for instance, seconds in total["gpu_time_by_instance"].items()
        },
        "evictions_max": int(result.outcomes.evictions.max()),
        "moves": total["moves"],
    }


def arm_name(name: str) -> str:
    """Return a name of a policy, with its rules; for options of a command."""
    try:
        policy_named(name)
    except InvalidValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return name


def _while_requests_arrive(result: SimulationResult) -> dict[str, float]:
    """Return rates up to the last arrival, after which the queues only empty; none if all arrive at once."""
    last_ns = int(result.workload.arrival_ns[-1])
    if not last_ns:
        return {}
    span_s = last_ns / 1e9
    ended_ns = result.outcomes.ended_ns
    ended = (ended_ns >= 0) & (ended_ns <= last_ns)
    return {
        "offered_per_s": round(len(result.workload) / span_s, 2),
        "answered_per_s": round(int(ended.sum()) / span_s, 2),
        "tokens_per_s": round(int(result.outcomes.tokens[ended].sum()) / span_s),
    }


def _requests_by_instance(result: SimulationResult) -> dict[str, int]:
    names = [*result.instances, "none"]  # index -1: no engine ever had the request
    return dict(sorted(Counter(names[index] for index in result.outcomes.instance.tolist()).items()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
