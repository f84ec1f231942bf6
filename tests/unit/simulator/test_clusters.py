"""Clusters in whole simulations: long prompts get their own class, and no change loses a request."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from qlm.controller.core.clustering import NOTHING_COUNTED, ClusterState
from qlm.domain.formats.clusters import Clusters, undivided
from qlm.domain.request import RequestMetadata
from qlm.simulator.policies import POLICIES
from qlm.simulator.scenario import Workload
from qlm.simulator.seeds import Seeds
from qlm.simulator.simulation import Simulation, SimulationObserver, simulate
from support.simulation import scenario, workload


class Classes(SimulationObserver):
    """Counts requests by cluster, in order of first use."""

    def __init__(self) -> None:
        self.clusters: Counter[str] = Counter()

    def on_published(self, number: int, metadata: RequestMetadata) -> None:
        self.clusters[metadata.cls.cluster] += 1


class Switched(Classes):
    """Divides the class after a while, and ends that after as long again."""

    def on_start(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._decisions = 0

    def on_published(self, number: int, metadata: RequestMetadata) -> None:
        super().on_published(number, metadata)
        controller = self._simulation.controller
        if number == 50:
            clusters = Clusters(found={undivided(metadata.cls): (304,)})
            controller.clusters = ClusterState(clusters=clusters)
        if number == 150:
            controller.clusters = NOTHING_COUNTED


def mixture(seeds: Seeds) -> Workload:
    """Reports, every tenth with a prompt of 20 000 tokens."""
    made = workload(300, rate_rps=8.0, prompt_tokens=100.0, classes=1)(seeds)
    made.prompt_tokens[::10] = 20_000
    made.slo_class[:] = 1
    return made


def served(make_workload: Callable[[Seeds], Workload], seen: Classes, *, clusters: bool) -> None:
    """Simulate, and check that every request is answered."""
    policy = replace(POLICIES["edf"], clusters=clusters)
    subject = scenario(make_workload)
    models = tuple(replace(model, context_tokens=32_768) for model in subject.models)
    subject = replace(subject, models=models)
    result = simulate(subject, policy, 1, stopwatch_s=time.perf_counter, observer=seen)
    assert set(result.outcomes.outcome) <= {"stop", "length"}


def test_long_prompts_wait_in_a_class_of_their_own() -> None:
    served(mixture, seen := Classes(), clusters=True)
    ordinary, long = sorted((name for name in seen.clusters if name != "all"), reverse=True)
    assert ordinary.startswith("to-") and long.startswith("over-")
    assert seen.clusters[ordinary] > 5 * seen.clusters[long] > 0


def test_lengths_are_not_divided_where_that_is_switched_off() -> None:
    served(mixture, seen := Classes(), clusters=False)
    assert set(seen.clusters) == {"all"}


def test_classes_drain_when_the_division_begins_and_when_it_ends() -> None:
    """A request stays in the class that it was given, and is served."""
    served(workload(300, rate_rps=12.0, classes=1), seen := Switched(), clusters=True)
    assert next(iter(seen.clusters)) == "all"
    assert set(seen.clusters) == {"all", "to-304", "over-304"}
    assert seen.clusters.total() == 300
