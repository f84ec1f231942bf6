"""Speed of a simulation on one core, and its parts: `python -m benchmarks.simulation`.

`azure-8` has eight saturated instances with the lengths of Azure conversations (goal: 5 000 requests per
second). `fleet-100` has a hundred instances and 400 000 requests (goal: under 3 minutes and 4 GB). Both are
served first come, first served, each in its own process, with the interpreter and with `benchmarks.compiled`.
The figures that count are processor time; wall time depends on the machine's other load.

The profiler more than doubles the time, most for short functions. So its shares, of fewer requests of the
same scenario, are approximate.
"""

import argparse
import cProfile
import json
import os
import pstats
import resource
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from qlm.cli.scenario.file import load_scenario
from qlm.simulator.policies import POLICIES
from qlm.simulator.results import SimulationResult
from qlm.simulator.scenario import Scenario
from qlm.simulator.simulation import simulate

FOLDER: Final = Path(__file__).parent / "scenarios"
COMPILED: Final = ("-m", "benchmarks.compiled")
TRACES: Final = "QLM_TRACES"
NEEDS_TRACES: Final = (
    f"azure-8: left out; it needs AzureLLMInferenceTrace_conv.csv of github.com/Azure/AzurePublicDataset "
    f"in ${TRACES}/azure_2023"
)
PROFILED_REQUESTS: Final = 10_000

PARTS: Final = {
    "engine model": ("simulator/engine/",),
    "agent protocol": ("agents/",),
    "store": ("store/",),
    "controller decisions": ("controller/", "planner/", "rct_estimator/"),
    "world and event queue": ("simulator/", "gateway/"),
}
"""Folders of each part; the first match counts. Other functions count for the part that calls them."""

CALLS_DEEP: Final = 30
"""Most calls between a function of no part and one of a part."""

Function = tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class Speed:
    """Measurements of one run; seconds of the simulation, without reading the scenario."""

    requests: int
    events: int
    decisions: int
    deciding_s: float
    simulated_s: float
    wall_s: float
    processor_s: float
    peak_bytes: int

    def rows(self) -> dict[str, str]:
        """Return printable figures by name."""
        return {
            "requests/s of the processor": f"{self.requests / self.processor_s:,.0f}",
            "requests/s of the wall": f"{self.requests / self.wall_s:,.0f}",
            "s of the processor": f"{self.processor_s:.1f}",
            "s of the wall": f"{self.wall_s:.1f}",
            "events/s of the processor": f"{self.events / self.processor_s:,.0f}",
            "events per request": f"{self.events / self.requests:.2f}",
            "simulated s per s of the processor": f"{self.simulated_s / self.processor_s:.1f}",
            f"s of the wall for {self.decisions:,} decisions of the controller": f"{self.deciding_s:.1f}",
            "GB at most": f"{self.peak_bytes / 1e9:.2f}",
        }


def main(arguments: list[str] | None = None) -> int:
    """Print the figures of both scenarios, or measure one in this process and print that as JSON."""
    options = _options(arguments)
    if options.measure or options.profile:
        scenario = load_scenario(FOLDER / f"{options.measure or options.profile}.yaml")
        answer = profiled(scenario) if options.profile else vars_of(measured(scenario))
        print(json.dumps(answer))
        return 0
    for name in options.scenarios:
        if name == "azure-8" and TRACES not in os.environ:
            print(NEEDS_TRACES)
            continue
        _show(name, Speed(**_apart("--measure", name)), _compiled(name))
        shares = _apart("--profile", name)
        print(f"  where the time goes, first {PROFILED_REQUESTS:,} requests under the profiler:")
        for part, share in sorted(shares.items(), key=lambda item: -item[1]):
            print(f"  {share:12.0%} {part}")
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.simulation", description=__doc__)
    names = ("azure-8", "fleet-100")
    parser.add_argument("scenarios", nargs="*", default=names, help=f"{', '.join(names)}; default: both")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--profile", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _show(name: str, plain: Speed, compiled: Speed | None) -> None:
    """Print the figures of a scenario, side by side."""
    print(f"{name}: {plain.requests:,} requests\n  {'interpreted':>12}{'compiled':>12}")
    columns = [each.rows() for each in (plain, compiled) if each is not None]
    for what, figure in columns[0].items():
        figures = [figure, *(column.get(what, "") for column in columns[1:])]
        print("  " + "".join(f"{each:>12}" for each in (*figures, "not built")[:2]) + f" {what}")


def _compiled(name: str) -> Speed | None:
    """Measure with compiled code; None, with a printed reason, if it cannot be compiled."""
    try:
        return Speed(**_apart("--measure", name, *COMPILED))
    except subprocess.CalledProcessError:
        print(f"{name}: not compiled; the lines above say why")
        return None


def _apart(flag: str, name: str, *launcher: str) -> dict[str, Any]:
    """Measure in a new process, without memory or caches of other runs."""
    command = [sys.executable, *launcher, "-m", "benchmarks.simulation", flag, name]
    answer: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return answer


def measured(scenario: Scenario) -> Speed:
    """Simulate and measure."""
    began_s = time.process_time()
    result = _simulated(scenario)
    processor_s = time.process_time() - began_s
    return Speed(
        requests=len(result.workload),
        events=result.events,
        decisions=len(result.plan_s),
        deciding_s=sum(result.plan_s),
        simulated_s=result.simulated_s,
        wall_s=result.wall_s,
        processor_s=processor_s,
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def vars_of(speed: Speed) -> dict[str, float]:
    """Return the figures by name."""
    return {each.name: getattr(speed, each.name) for each in fields(speed)}


def profiled(scenario: Scenario) -> dict[str, float]:
    """Simulate the first requests under the profiler; return each part's share of the time."""
    profile = cProfile.Profile()
    profile.runcall(_simulated, cut(scenario, PROFILED_REQUESTS))
    return shares(pstats.Stats(profile).stats)  # type: ignore[attr-defined]


def cut(scenario: Scenario, requests: int) -> Scenario:
    """Return the scenario with its first requests only."""

    return replace(scenario, make_workload=lambda seeds: scenario.make_workload(seeds).first(requests))


def shares(stats: Mapping[Function, tuple[Any, ...]]) -> dict[str, float]:
    """Sum time by part; functions of no part count for their callers, in proportion to the caused time.

    Args:
        stats: As `pstats` keeps them: calls, calls, own time, all time, and the last four by caller.
    """
    spent_s: dict[str, float] = defaultdict(float)
    left_s: dict[Function, float] = {function: entry[2] for function, entry in stats.items()}
    for _ in range(CALLS_DEEP):
        passed_on_s: Counter[Function] = Counter()
        for function, own_s in left_s.items():
            callers = stats[function][4]
            whole_s = sum(caller[3] for caller in callers.values())
            part = part_of(function[0])
            if part is not None or not whole_s:
                spent_s[part or "other"] += own_s
                continue
            for caller, (_, _, _, caused_s) in callers.items():
                passed_on_s[caller] += own_s * caused_s / whole_s
        left_s = dict(passed_on_s)
    spent_s["other"] += sum(left_s.values())
    whole_s = sum(spent_s.values())
    return {part: seconds / whole_s for part, seconds in spent_s.items()}


def part_of(file: str) -> str | None:
    """Return the part of a source file."""
    inside = file.rpartition("/qlm/")[2] if "/qlm/" in file else file.rpartition("site-packages/")[2]
    return next((part for part, folders in PARTS.items() if inside.startswith(folders)), None)


def _simulated(scenario: Scenario) -> SimulationResult:
    return simulate(scenario, POLICIES["fcfs"], 1, stopwatch_s=time.perf_counter)


if __name__ == "__main__":
    raise SystemExit(main())
