"""A drawn scenario before its rates are known: everything relative to its length and its capacity."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.motion.generator.chance import happens, log_uniform
from benchmarks.motion.generator.demand import (
    Backlog,
    ModelDemand,
    Phase,
    draw_backlog,
    draw_demands,
    draw_phases,
)
from benchmarks.motion.generator.disturbances import Disturbances, draw_disturbances
from benchmarks.motion.generator.fleet import DrawnFleet, draw_fleet
from benchmarks.motion.generator.objectives import Mix, draw_classes, draw_mixes
from qlm.simulator.seeds import Seeds

REQUESTS: Final = (200.0, 900.0)
"""Least and most requests at load 1.0."""

REQUESTS_MAX: Final = 1200
"""Most requests at load 1.0, so that at load 1.5 there are at most 2 500."""

LASTS_S: Final = (150.0, 900.0)
"""Least and greatest length of a run that lengths of prompts and answers are chosen for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A drawn scenario without rates.

    Attributes:
        seed: Seed of all draws.
        classes: Objectives as in the file.
        mixes: Shares of classes, by model.
        requests: Expected requests at load 1.0.
        lasts_s: Length of the run that is aimed at.
        host_kv_gib: Host memory for KV blocks.
    """

    seed: int
    fleet: DrawnFleet
    classes: Mapping[str, Mapping[str, Any]]
    mixes: Mapping[str, Mix]
    phases: tuple[Phase, ...]
    demands: tuple[ModelDemand, ...]
    backlog: Backlog | None
    disturbances: Disturbances
    requests: float
    lasts_s: float
    host_kv_gib: int

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of all requests, by model."""
        means = [0.0] * len(self.demands)
        for phase in self.phases:
            for number, share in enumerate(phase.shares):
                means[number] += share * (phase.end - phase.start)
        if self.backlog is None:
            return tuple(means)
        rest = 1 - self.backlog.share
        return tuple(
            rest * mean + (self.backlog.share if number == self.backlog.model else 0.0)
            for number, mean in enumerate(means)
        )


def draw_draft(seed: int) -> Draft:
    """Draw a scenario; each part has random numbers of its own."""
    seeds = Seeds(seed)
    fleet = draw_fleet(seeds.rng("generator/fleet"))
    ids = list(fleet.models)
    twins = [number for number, id in enumerate(ids) if id in fleet.twins]
    objectives, size = seeds.rng("generator/objectives"), seeds.rng("generator/size")
    classes = draw_classes(objectives)
    mixes = draw_mixes(objectives, ids, list(classes))
    demand = seeds.rng("generator/demand")
    return Draft(
        seed=seed,
        fleet=fleet,
        classes=classes,
        mixes={id: mixes[ids[0]] if id in fleet.twins else mixes[id] for id in ids},
        phases=draw_phases(demand, len(ids), twins),
        demands=draw_demands(demand, len(ids), twins),
        backlog=draw_backlog(demand, len(ids)),
        disturbances=draw_disturbances(seeds.rng("generator/disturbances"), fleet),
        requests=log_uniform(size, *REQUESTS),
        lasts_s=log_uniform(size, *LASTS_S),
        host_kv_gib=16 if happens(size, 0.3) else 0,
    )
