"""Simulations that begin with a history: the knowledge of the controller at the start; by default, none."""

import time
from dataclasses import replace

import numpy as np
import pytest

from qlm.controller.core.estimating.state import EstimatorState
from qlm.controller.core.history.history import recalled
from qlm.domain.group import RequestClass
from qlm.simulator.cluster.event_queue import EPOCH_NS
from qlm.simulator.history import past_history
from qlm.simulator.policies import POLICIES
from qlm.simulator.scenario import PastTraffic, Scenario, Workload
from qlm.simulator.seeds import Seeds
from qlm.simulator.simulation import Simulation, SimulationObserver, simulate
from support.simulation import CHAT, REPORT, SMALL, run, scenario

COUNT = 240
CLASSES = [RequestClass(SMALL, name, target_ms=1000.0) for name in ("ttft-1s", "deadline-60s")]


def past(seeds: Seeds) -> Workload:
    """Two minutes with two requests per second, every fourth of another class with longer answers."""
    fourth = np.arange(COUNT) % 4 == 3
    return Workload(
        arrival_ns=(np.arange(1, COUNT + 1) * 500_000_000).astype(np.int64),
        model=np.zeros(COUNT, dtype=np.int64),
        tenant=np.zeros(COUNT, dtype=np.int64),
        slo_class=fourth.astype(np.int64),
        prompt_tokens=np.full(COUNT, 300),
        output_tokens=np.where(fourth, 700, 40),
        max_tokens=np.full(COUNT, 512),
    )


def known(age_s: float = 0.0) -> EstimatorState:
    traffic = PastTraffic(make_workload=past, age_s=age_s)
    history = past_history(traffic, past(Seeds(1)), lambda model, slo_class: CLASSES[slo_class], EPOCH_NS)
    return recalled(history, EPOCH_NS)


def test_the_controller_knows_lengths_prompts_and_rates_of_the_past() -> None:
    state = known()
    first, fourth = (state.records[cls] for cls in CLASSES)
    assert first.counts.all_tokens / first.counts.answers == pytest.approx(40, rel=0.01)
    assert fourth.counts.ended.sum() == 0, "all were cut off at the limit"
    assert fourth.counts.all_tokens / fourth.counts.answers == pytest.approx(512, rel=0.01)
    assert (first.mean_prompt_tokens, first.mean_max_tokens) == (300, 512)
    rates = [state.arrivals[cls].accepted_rps for cls in CLASSES]
    assert rates == pytest.approx([1.5, 0.5], rel=0.1)


def test_an_answer_that_just_fits_its_limit_has_ended_by_itself_as_in_a_simulation() -> None:
    def make(seeds: Seeds) -> Workload:
        drawn = past(seeds)
        return replace(drawn, output_tokens=510 + np.arange(COUNT) % 5)

    stopped = run(scenario(make, instances=2)).outcomes.outcome.count("stop")
    assert stopped == COUNT * 3 / 5
    history = past_history(PastTraffic(make_workload=make), make(Seeds(1)), lambda *_: CLASSES[0], EPOCH_NS)
    (record,) = recalled(history, EPOCH_NS).records.values()
    assert record.counts.ended.sum() / record.counts.answers == pytest.approx(stopped / COUNT)


def test_an_old_history_tells_lengths_but_no_rates() -> None:
    state = known(age_s=86_400.0)
    assert not state.arrivals
    assert state.records[CLASSES[0]].former_answers == pytest.approx(50, rel=0.01)


class AtStart(SimulationObserver):
    """Notes what the controller knows before the first event."""

    def on_start(self, simulation: Simulation) -> None:
        self.estimator = simulation.controller.estimator


def started(subject: Scenario) -> EstimatorState:
    observer = AtStart()
    simulate(subject, POLICIES["qlm"], 1, stopwatch_s=time.perf_counter, observer=observer)
    return observer.estimator


def test_a_simulation_begins_with_the_history_of_its_scenario_or_with_nothing() -> None:
    def one(seeds: Seeds) -> Workload:
        few = past(seeds)
        columns = (
            "arrival_ns",
            "model",
            "tenant",
            "slo_class",
            "prompt_tokens",
            "output_tokens",
            "max_tokens",
        )
        return replace(few, **{name: getattr(few, name)[:1] for name in columns})

    fresh = scenario(one, instances=1)
    assert not started(fresh).records
    state = started(replace(fresh, past=PastTraffic(make_workload=past)))
    slos = {cls.slo: round(record.former_answers) for cls, record in state.records.items()}
    assert slos == {CHAT.slo.label(): 100, REPORT.slo.label(): 60}
    assert started(replace(fresh, past=PastTraffic(make_workload=past, age_s=7200.0))).arrivals == {}
