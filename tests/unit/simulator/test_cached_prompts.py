"""Simulated conversations: the controller learns what prefix caches hold of the prompts of each class."""

from dataclasses import replace

import numpy as np
import pytest

from qlm.simulator.engine.generation import PREFIX_TOKENS
from qlm.simulator.scenario import Workload
from qlm.simulator.seeds import Seeds
from qlm.simulator.simulation import Simulation, SimulationObserver
from support.simulation import run, scenario, workload

BLOCKS = 4
PROMPT = BLOCKS * PREFIX_TOKENS + 100
CONVERSATIONS = 10


def conversations(seeds: Seeds) -> Workload:
    """Return requests of two classes: one asks again and again about the same texts, one about new ones."""
    base = workload(300, rate_rps=3.0, classes=2)(seeds)
    count = len(base)
    texts = np.where(base.slo_class == 0, np.arange(count) % CONVERSATIONS, CONVERSATIONS + np.arange(count))
    return replace(
        base,
        prompt_tokens=np.full(count, PROMPT),
        prefixes=tuple(tuple(BLOCKS * int(text) + block for block in range(BLOCKS)) for text in texts),
    )


class Last(SimulationObserver):
    def on_start(self, simulation: Simulation) -> None:
        self.simulation = simulation


def test_the_share_of_each_class_and_the_speed_of_the_engine_are_learned_apart() -> None:
    observer = Last()
    result = run(scenario(conversations, instances=1), policy="qlm", observer=observer)
    state = observer.simulation.controller.estimator
    shares = {cls.slo: known.workload.cached_share for cls, known in state.classes.items()}
    cached_share = result.prefix_hits / int(PROMPT * (result.workload.slo_class == 0).sum())
    assert cached_share > 0.8
    assert shares["ttft-2s-tpot-100ms"] == pytest.approx(cached_share, abs=0.05)
    assert shares["deadline-60s"] == 0.0
    (history,) = state.instances.values()
    (correction,) = history.corrections.values()
    assert correction.factor == pytest.approx(1.0, abs=0.1), "the engine is as fast as its profile"
