"""Tasks on several equal instances, by the way their calls get to one: `python -m benchmarks.tasks.placed`.

Every instance has the same load, in tasks per second of one instance. `mixed` sends calls anywhere, `strands`
is what controllers do, and `sticky` is the simple rival: a task stays on the instance that had the fewest
open tasks at its first call. All have equal tasks; differences to `mixed` are taken seed by seed.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from benchmarks.tasks.drawn import Size
from benchmarks.tasks.rules import OfGateways
from benchmarks.tasks.run import cluster_of, in_time
from qlm.agents.core.stats.gpu_time import GpuUse
from qlm.cli.comparison.statistics import interval
from qlm.domain.ids import InstanceId, ModelId
from qlm.simulator.results import SimulationResult
from qlm.simulator.rules import policy_named
from qlm.simulator.scenario import Scenario
from qlm.simulator.simulation import simulate
from qlm.simulator.tasks import ChosenObjective, TaskCalls

LOAD_1: Final = 0.393
"""Tasks per second of load 1.0 on one instance, as `make bench ARGS="tasks"` measures it with seed 11."""

WAYS: Final[Mapping[str, str]] = {"mixed": "qlm+mixed", "strands": "qlm", "sticky": "qlm+mixed"}
"""Policy of each way."""

_COMPARED: Final = ("in_time", "latency_s", "hits")


class Sticky(OfGateways):
    """The rule of gateways; each instance is a model of its own, and each task stays with one."""

    def __init__(self, tasks: TaskCalls, models: int) -> None:
        super().__init__(tasks)
        self._open, self._of = [0] * models, dict[int, int]()

    def arrived(self, number: int, now_ns: int) -> ChosenObjective:
        """Return what a gateway makes of the call, on the instance of its task."""
        task = self._task[number]
        if task not in self._of:
            self._of[task] = self._open.index(min(self._open))
            self._open[self._of[task]] += 1
        self._open[self._of[task]] -= self._left[number] == 1
        return replace(super().arrived(number, now_ns), model=self._of[task])


def scenario_of(way: str, instances: int, size: Size) -> Scenario:
    """Return the scenario of a way on a number of equal instances."""
    one = cluster_of("slo.task", size)
    numbers, like, model = range(instances), one.instances[0], one.models[0]
    if way != "sticky":
        equal = tuple(replace(like, id=InstanceId(f"a100-{at}")) for at in numbers)
        return replace(one, instances=equal)
    models = tuple(replace(model, id=ModelId(f"{model.id}-{at}")) for at in numbers)
    profiles = {
        (each.id, kind): profile for each in models for (_, kind), profile in one.fleet.profiles.items()
    }
    kinds = {
        name: replace(kind, models={each.id: kind.models[model.id] for each in models})
        for name, kind in one.fleet.kinds.items()
    }
    return replace(
        one,
        models=models,
        instances=tuple(
            replace(like, id=InstanceId(f"a100-{at}"), models=(each.id,)) for at, each in enumerate(models)
        ),
        fleet=replace(one.fleet, kinds=kinds, profiles=profiles),
        call_objectives=lambda tasks: Sticky(tasks, instances),
    )


def figures(result: SimulationResult) -> dict[str, Any]:
    """Return what is compared."""
    outcomes = result.outcomes
    ended = outcomes.ended_ns >= 0
    total_ns = sum(each.total_ns for each in result.gpu_times)
    beside_ns = sum(each.ns[GpuUse.IDLE_AWAKE] for each in result.gpu_times)
    return {
        "in_time": round(in_time(result), 4),
        "latency_s": round(float(np.mean((outcomes.ended_ns - outcomes.arrival_ns)[ended])) / 1e9, 3),
        "hits": round(result.prefix_hits / int(result.workload.prompt_tokens.sum()), 3),
        "idle": round(sum(each.ns[GpuUse.IDLE] for each in result.gpu_times) / total_ns, 4),
        "idle_beside_work": round(beside_ns / total_ns, 5),
        "moves": result.moves,
        "plan_ms": round(1e3 * statistics.fmean(result.plan_s), 2),
    }


def main(arguments: Sequence[str]) -> int:
    """Simulate all cells, print a line of JSON for each, then the differences."""
    options = _options(arguments)
    for load in options.loads:
        found: dict[str, list[dict[str, Any]]] = {way: [] for way in options.ways}
        rate = options.capacity * load * options.instances
        size = Size(options.tasks * options.instances, rate)
        for seed in options.seeds:
            for way in options.ways:
                scenario = scenario_of(way, options.instances, size)
                policy = policy_named(WAYS[way])
                row = figures(simulate(scenario, policy, seed, stopwatch_s=time.perf_counter))
                found[way].append(row)
                cell = {"instances": options.instances, "load": load, "seed": seed, "way": way}
                print(json.dumps(cell | row), flush=True)
        print(differences(found, options.ways[0]), flush=True)
    return 0


def differences(found: Mapping[str, Sequence[Mapping[str, Any]]], base: str) -> str:
    """Return the means of each way, and what it has more than the base, with 95 % intervals."""
    lines = []
    for way, rows in found.items():
        for name in _COMPARED:
            more = [row[name] - other[name] for row, other in zip(rows, found[base], strict=True)]
            ends = interval(more)
            within = "" if ends is None else f" ({ends[0]:+.3f} to {ends[1]:+.3f})"
            mean = statistics.fmean(row[name] for row in rows)
            lines.append(f"  {way:8} {name:10} {mean:.3f}  {statistics.fmean(more):+.3f}{within}")
    return "\n".join(lines) + "\n"


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tasks.placed", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[21, 22, 23, 24])
    parser.add_argument("--loads", type=float, nargs="+", default=[0.5, 1.0])
    parser.add_argument("--instances", type=int, default=2, help="[%(default)s]")
    parser.add_argument("--tasks", type=int, default=60, help="tasks per instance [%(default)s]")
    parser.add_argument("--ways", nargs="+", choices=tuple(WAYS), default=tuple(WAYS), metavar="WAY")
    parser.add_argument("--capacity", type=float, default=LOAD_1, help="[%(default)s]")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
