"""Static placement: each model on fixed instances, found with true speeds and lengths.

The work of a model on an instance is its share of the requests times the time of one there: the mean time
between two ends in a full batch (`rct_estimator.throughput`). A linear program splits the work so that the
busiest instance has the least; its solution is a corner, in which fewer models than there are instances are
split. A second candidate has one instance per model. Swaps are in neither: a simulation decides between them.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import highspy
import numpy as np
import numpy.typing as npt

from qlm.domain.ids import ModelId
from qlm.planner.quiet_highs import quiet_highs
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.profiles.profile import Profile
from qlm.rct_estimator.throughput import steady_state
from qlm.rct_estimator.workload import Workload as ClassWorkload
from qlm.simulator.policies import POLICIES
from qlm.simulator.results import NEVER, SimulationResult
from qlm.simulator.scenario import Scenario, SlowInstance, Workload
from qlm.simulator.simulation import simulate

FloatArray = npt.NDArray[np.float64]
Placement = tuple[tuple[ModelId, ...], ...]
"""Models of each instance in the order of the scenario, the one with most work first."""

LEAST_SHARE: Final = 0.02
"""Least share of a model's requests for which it gets an instance."""

COUNTED: Final = 0.9
"""Share of the requests after which a saturated simulation is evaluated: later, instances run out of work."""


def best_split(work: FloatArray) -> tuple[float, FloatArray]:
    """Return the least load of the busiest instance, and the shares of the models there.

    Args:
        work: Instance time per request of the mix; inf where a model cannot run, shape (models, instances).
    """
    models, instances = work.shape
    highs = quiet_highs(solver="simplex")
    none = np.zeros(0, dtype=np.int32)
    for _ in range(models):
        highs.addRow(1.0, 1.0, 0, none, none.astype(np.float64))
    for _ in range(instances):
        highs.addRow(-highspy.kHighsInf, 0.0, 0, none, none.astype(np.float64))
    every = np.arange(models, models + instances, dtype=np.int32)
    highs.addCol(1.0, 0.0, highspy.kHighsInf, instances, every, -np.ones(instances))
    pairs = np.argwhere(np.isfinite(work))
    for m, i in pairs:
        rows = np.array([m, models + i], dtype=np.int32)
        highs.addCol(0.0, 0.0, highspy.kHighsInf, 2, rows, np.array([1.0, work[m, i]]))
    highs.run()
    found = np.array(highs.getSolution().col_value)
    shares = np.zeros_like(work)
    shares[tuple(pairs.T)] = found[1:]
    return float(found[0]), shares


def one_home(work: FloatArray) -> FloatArray:
    """Return shares of 1 on the instance where a model ends soonest, models with most work first."""
    shares, loads = np.zeros_like(work), np.zeros(work.shape[1])
    for m in np.argsort(-work.min(axis=1), kind="stable"):
        at = int(np.argmin(loads + work[m]))
        loads[at] += work[m, at]
        shares[m, at] = 1.0
    return shares


def work_of(scenario: Scenario, workload: Workload) -> FloatArray:
    """Return the work of the models on the instances, with the lengths of these very requests."""
    work = np.full((len(scenario.models), len(scenario.instances)), np.inf)
    slowness = {each.instance: each.factor for each in scenario.faults if isinstance(each, SlowInstance)}
    for m, model in enumerate(scenario.models):
        mine = workload.model == m
        shape = _shape(workload, mine) if mine.any() else None
        for i, instance in enumerate(scenario.instances):
            if model.id in instance.models:
                profile = scenario.true_profile(model.id, instance.kind)
                request_s = steady_state(profile, shape).request_s if shape else 0.0
                work[m, i] = float(mine.mean()) * request_s * slowness.get(instance.id, 1.0)
    return work


def _shape(workload: Workload, rows: npt.NDArray[np.bool_]) -> ClassWorkload:
    prompt, output = workload.prompt_tokens[rows], np.minimum(workload.output_tokens, workload.max_tokens)
    return ClassWorkload(
        prompt_tokens=float(prompt.mean()),
        output=Normal(float(output[rows].mean()), float(output[rows].var())),
        prompt_var=float(prompt.var()),
    )


def candidates(scenario: Scenario, workload: Workload) -> list[Placement]:
    """Return the placements that a simulation decides between."""
    work = work_of(scenario, workload)
    found = [_placement(scenario, work, shares) for shares in (best_split(work)[1], one_home(work))]
    return list(dict.fromkeys(found))


def _placement(scenario: Scenario, work: FloatArray, shares: FloatArray) -> Placement:
    ids = [model.id for model in scenario.models]
    homes = (shares >= LEAST_SHARE) | (shares == shares.max(axis=1, keepdims=True))
    homes &= np.isfinite(work)
    done = np.where(homes, shares * np.where(np.isfinite(work), work, 0.0), -1.0)
    return tuple(
        tuple(ids[m] for m in np.argsort(-done[:, i], kind="stable").tolist() if homes[m, i])
        for i in range(work.shape[1])
    )


def placed(scenario: Scenario, placement: Placement) -> Scenario:
    """Return the scenario with each instance restricted to its models; one without any keeps its first."""
    return replace(
        scenario,
        instances=tuple(
            replace(each, models=models or each.models[:1])
            for each, models in zip(scenario.instances, placement, strict=True)
        ),
    )


def saturated_rps(scenario: Scenario, placement: Placement, workload: Workload) -> float:
    """Measure the answers per second if all requests come at once, all engines run, and no instance leaves.

    Each instance serves the model with the most waiting requests until none waits, then the next.
    """
    at_once = replace(workload, arrival_ns=np.zeros_like(workload.arrival_ns))
    slow = tuple(each for each in scenario.faults if isinstance(each, SlowInstance))
    saturated = replace(
        _started(placed(scenario, placement)),
        make_workload=lambda seeds: at_once,
        faults=slow,
        horizon_s=None,
    )
    result = simulate(saturated, POLICIES["group-greedy"], 0, stopwatch_s=time.perf_counter)
    return _rate_rps(result)


def _started(scenario: Scenario) -> Scenario:
    """Return the scenario with processes of all models: their first starts are over."""

    def started(profiles: Mapping[tuple[ModelId, str], Profile]) -> dict[tuple[ModelId, str], Profile]:
        return {key: replace(each, swap_cold_s=each.swap_reload_s) for key, each in profiles.items()}

    fleet = replace(scenario.fleet, profiles=started(scenario.fleet.profiles))
    return replace(scenario, fleet=fleet, true_profiles=started(scenario.true_profiles))


def _rate_rps(result: SimulationResult) -> float:
    ended_ns = np.sort(result.outcomes.ended_ns[result.outcomes.ended_ns != NEVER])
    counted = max(1, round(COUNTED * len(result.workload)))
    return counted / (float(ended_ns[counted - 1]) / 1e9)


def best_saturated(scenario: Scenario, workload: Workload) -> tuple[float, Placement]:
    """Return the rate of the best candidate when saturated, and the candidate."""
    rates = [(saturated_rps(scenario, each, workload), each) for each in candidates(scenario, workload)]
    return max(rates, key=lambda rate: rate[0])
