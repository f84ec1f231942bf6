"""Clusters in whole simulations: long prompts get a class of their own, and no request is lost by a change."""

from collections import Counter

import numpy as np

from qlm.controller.core.clustering import NOTHING_COUNTED, ClusterState
from qlm.domain.formats.clusters import Clusters, undivided
from qlm.domain.request import RequestMetadata
from qlm.simulator.scenario import Workload
from qlm.simulator.seeds import Seeds
from qlm.simulator.simulation import Simulation, SimulationObserver
from support.simulation import run, scenario, workload


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
            clusters = Clusters(found={undivided(metadata.cls): (300,)})
            controller.clusters = ClusterState(clusters=clusters)
        if number == 150:
            controller.clusters = NOTHING_COUNTED


def mixture(seeds: Seeds) -> Workload:
    """Chat prompts, and every tenth of 7 000 tokens."""
    made = workload(600, rate_rps=4.0, prompt_tokens=100.0, classes=1)(seeds)
    made.prompt_tokens[::10] = 7000
    made.slo_class[:] = 1
    return made


def test_long_prompts_wait_in_a_class_of_their_own() -> None:
    seen = Classes()
    result = run(scenario(mixture, kind="A10"), policy="qlm", observer=seen)
    assert set(result.outcomes.outcome) <= {"stop", "length"}
    ordinary, long = (name for name in seen.clusters if name != "all")
    assert ordinary.startswith("to-") and long.startswith("over-")
    assert seen.clusters[ordinary] > 5 * seen.clusters[long] > 0
    same = run(scenario(mixture, kind="A10"), policy="edf", observer=(whole := Classes()))
    assert set(whole.clusters) == {"all"}, "a baseline forms groups without clusters"
    assert np.array_equal(same.workload.prompt_tokens, result.workload.prompt_tokens)


def test_classes_drain_when_the_division_begins_and_when_it_ends() -> None:
    """What was put into a class before stays there, and is served."""
    seen = Switched()
    result = run(scenario(workload(300, rate_rps=12.0, classes=1)), policy="qlm", observer=seen)
    assert set(result.outcomes.outcome) <= {"stop", "length"}
    assert list(seen.clusters)[0] == "all"
    assert set(seen.clusters) == {"all", "to-300", "over-300"}
    assert sum(seen.clusters.values()) == 300
