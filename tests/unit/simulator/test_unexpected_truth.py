"""Runs in which engines or lengths are not what the controller expects."""

from dataclasses import replace

import numpy as np
import pytest

from qlm.cli.scenario.file import with_errors
from qlm.controller.core.decide import Decision
from qlm.simulator.scenario import Scenario, Workload
from qlm.simulator.simulation import Simulation, SimulationObserver
from support.simulation import LARGE, SMALL, run, scenario


def requests(*rows: tuple[float, int, int]) -> Workload:
    """Make reports from (arrival in seconds, model, output tokens)."""
    at_s, models, tokens = zip(*rows, strict=True)
    same = np.ones(len(rows), dtype=np.int64)
    return Workload(
        arrival_ns=np.round(np.array(at_s) * 1e9).astype(np.int64),
        model=np.array(models, dtype=np.int64),
        tenant=0 * same,
        slo_class=same,
        prompt_tokens=300 * same,
        output_tokens=np.array(tokens, dtype=np.int64),
        max_tokens=512 * same,
    )


def erring(subject: Scenario, *, iterations: float = 1.0, swaps: float = 1.0) -> Scenario:
    true = {
        key: with_errors(profile, iterations=iterations, swaps=swaps)
        for key, profile in subject.fleet.profiles.items()
    }
    return replace(subject, true_profiles=true)


def test_engines_run_by_their_true_profile() -> None:
    subject = scenario(lambda seeds: requests((0.0, 0, 400)), instances=1)
    usual, slow = (run(each).outcomes.ended_ns[0] for each in (subject, erring(subject, iterations=1.5)))
    assert slow == pytest.approx(1.5 * usual, rel=0.02)


def test_swaps_take_their_true_time() -> None:
    subject = scenario(lambda seeds: requests((0.0, 1, 10)), instances=1, models=(SMALL, LARGE))
    usual, quick = (run(each).swap_seconds for each in (subject, erring(subject, swaps=0.5)))
    assert usual > 10
    assert quick == pytest.approx(0.5 * usual)


class FirstDecision(SimulationObserver):
    """Keeps what the first plan with groups expects, and the answers in the store at the start."""

    def __init__(self) -> None:
        self.service_s: float | None = None
        self.output_tokens = 0.0
        self.answers: dict[str, int] = {}

    def on_start(self, simulation: Simulation) -> None:
        rows = simulation.services.state.classes.rows
        self.answers = {str(cls.slo): row.lengths.value.answers for cls, row in rows.items()}

    def on_decided(self, decision: Decision) -> None:
        if self.service_s is None and decision.problem.groups:
            (time,) = decision.problem.groups[0].time.values()
            self.service_s = time.service.mean
            (known,) = decision.estimator.classes.values()
            self.output_tokens = known.workload.output.mean


def first_decision(subject: Scenario, policy: str = "edf") -> FirstDecision:
    seen = FirstDecision()
    run(subject, policy=policy, observer=seen)
    return seen


def test_the_controller_expects_the_times_of_the_profile() -> None:
    subject = scenario(lambda seeds: requests((0.0, 0, 100)), instances=1)
    usual, erred = first_decision(subject), first_decision(erring(subject, iterations=1.5))
    assert usual.service_s is not None
    assert erred.service_s == usual.service_s
