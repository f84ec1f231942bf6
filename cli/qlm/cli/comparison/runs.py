"""The runs of a comparison: each policy gets the same requests, for each scenario, load and seed."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from qlm.cli.config.errors import ConfigError
from qlm.cli.scenario.workload import draw_scenario
from qlm.simulator.policies import Policy
from qlm.simulator.report import summary
from qlm.simulator.simulation import Progress, simulate

BESIDE_WORK = ("idle_awake", "idle_loadable")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of one run; None where no request had a part in one. Shares are of 1.

    Attributes:
        met: Share of the counted requests that met their objective.
        worst_class: The same of the class with the smallest share.
        served_rps: Answered requests per second.
        p99_first_token_s: Of all classes, the longest P99 of the time to the first token.
        swaps: Model swaps.
        evictions: Returns of started requests to the queue.
        again: Share of GPU time in which tokens were computed again.
        idle: Share of GPU time in which an instance was idle beside work that it could do.
    """

    met: float | None
    worst_class: float | None
    served_rps: float | None
    p99_first_token_s: float | None
    swaps: float | None
    evictions: float | None
    again: float | None
    idle: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One simulation of a comparison."""

    scenario: str
    load: float
    policy: str
    seed: int
    figures: Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is compared. The first policy is the one that others are compared with."""

    scenarios: Sequence[Path]
    policies: Sequence[Policy]
    loads: Sequence[float]
    seeds: Sequence[int]

    @property
    def size(self) -> int:
        """Number of simulations."""
        return len(self.scenarios) * len(self.policies) * len(self.loads) * len(self.seeds)


def run(
    plan: Plan, on_run: Callable[[int, str], None], on_progress: Callable[[Progress], None]
) -> Iterator[Run]:
    """Simulate, and yield each run as it ends.

    Args:
        plan: What to compare.
        on_run: Receives the number and the name of each simulation before it starts.
        on_progress: Receives the progress within it.

    Raises:
        ConfigError: A scenario is wrong, or two have one name; all are read before the first simulation.
    """
    _check(plan)
    number = 0
    for path, load, seed in product(plan.scenarios, plan.loads, plan.seeds):
        drawn = draw_scenario(path, seed, load=load)
        for policy in plan.policies:
            number += 1
            on_run(number, f"{drawn.scenario.name}, load {load:g}, seed {seed}, {policy.name}")
            result = simulate(
                drawn.scenario, policy, seed, stopwatch_s=time.perf_counter, on_progress=on_progress
            )
            yield Run(
                scenario=drawn.scenario.name,
                load=load,
                policy=policy.name,
                seed=seed,
                figures=figures(summary(result)),
            )


def _check(plan: Plan) -> None:
    paths: dict[str, Path] = {}
    for path in plan.scenarios:
        for load in plan.loads:
            name = draw_scenario(path, plan.seeds[0], load=load).scenario.name
        if name in paths:
            message = f"{path} has the name {name!r}, as {paths[name]}; expected scenarios of different names"
            raise ConfigError(message)
        paths[name] = path


def figures(summed: Mapping[str, Any]) -> Figures:
    """Return the figures of a summary (`qlm.simulator.report.summary`)."""
    firsts = (each["first_token_p99_s"] for each in summed["latency_by_class"].values())
    return Figures(
        met=summed["attainment"],
        worst_class=min(summed["attainment_by_class"].values(), default=None),
        served_rps=summed["throughput_rps"],
        p99_first_token_s=max((each for each in firsts if each is not None), default=None),
        swaps=summed["swaps"],
        evictions=summed["evictions"],
        again=summed["gpu_time"]["again"],
        idle=sum(summed["gpu_time"][use] for use in BESIDE_WORK),
    )
