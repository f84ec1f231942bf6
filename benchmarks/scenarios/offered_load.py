"""Offered load of a scenario relative to its fleet's capacity.

`python -m benchmarks.scenarios.offered_load FILE`. The capacity of an instance for a model is the steady
state of a full batch by the profiles (rct_estimator.throughput), with the means of the scenario's requests
for seed 1. The load is the busy share of the instances of a pool under the best split of the work, without
swaps and partly filled batches. Pools are instances linked by common models.
"""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from qlm.cli.scenario.file import load_scenario
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.throughput import steady_state
from qlm.rct_estimator.workload import Workload as ClassWorkload
from qlm.simulator.scenario import Scenario, Workload
from qlm.simulator.seeds import Seeds

FloatArray = npt.NDArray[np.float64]


def main(path: Path) -> None:
    scenario = load_scenario(path)
    workload = scenario.make_workload(Seeds(1))
    span_s = float(workload.arrival_ns[-1] - workload.arrival_ns[0]) / 1e9
    kinds = [(instance.kind, tuple(sorted(instance.models))) for instance in scenario.instances]
    groups = sorted(set(kinds))
    counts = np.array([kinds.count(group) for group in groups])
    seconds = np.full((len(scenario.models), len(groups)), np.inf)
    for m, model in enumerate(scenario.models):
        shape = class_workload(workload, m)
        requests = int(np.count_nonzero(workload.model == m))
        print(f"{model.id}: {requests} requests, {requests / max(span_s, 1e-9):.2f} per s,", end=" ")
        print(f"mean {shape.prompt_tokens:.0f} tokens in, {shape.output.mean:.0f} out")
        for g, (kind, models) in enumerate(groups):
            if model.id in models:
                state = steady_state(scenario.fleet.profiles[model.id, kind], shape)
                seconds[m, g] = requests * state.request_s / max(span_s, 1e-9)
                print(f"  {kind}: {1 / state.request_s:.2f} per s, batch {state.batch:.0f}")
    print(f"{len(workload)} requests in {span_s:.0f} s")
    for members in pools(seconds):
        load = least_load(seconds[:, members], counts[members])
        names = ", ".join(f"{counts[g]} x {groups[g][0]}" for g in members)
        print(f"load of {names}: {load:.2f}")
    print_classes(scenario, workload)


def class_workload(workload: Workload, model: int) -> ClassWorkload:
    mine = workload.model == model
    output = np.minimum(workload.output_tokens, workload.max_tokens)[mine]
    return ClassWorkload(
        prompt_tokens=float(workload.prompt_tokens[mine].mean()),
        output=Normal(float(output.mean()), float(output.var())),
    )


def pools(seconds: FloatArray) -> Iterator[list[int]]:
    """Yield the groups of instances that share models."""
    left = set(range(seconds.shape[1]))
    while left:
        members = {min(left)}
        while True:
            models = np.isfinite(seconds[:, sorted(members)]).any(axis=1)
            more = set(np.flatnonzero(np.isfinite(seconds[models]).any(axis=0)).tolist())
            if more <= members:
                break
            members |= more
        left -= members
        yield sorted(members)


def least_load(seconds: FloatArray, counts: npt.NDArray[np.int64]) -> float:
    """Return the load of the busiest group under the best split of the models' work.

    Exact, by duality: the load is the largest price of all work, each model served where it is cheapest, over
    prices of instance time that sum to 1 over the instances. This is concave and piecewise linear, so a
    corner is optimal; at a corner, models have equal prices in two groups.

    Args:
        seconds: Instance time for a model's requests of one second, by group; inf where the model cannot run,
            shape (models, groups).
        counts: Number of instances per group.
    """
    groups = len(counts)
    ties = [np.eye(groups)[g] for g in range(groups)]
    for row in seconds:
        for g, h in itertools.combinations(np.flatnonzero(np.isfinite(row)).tolist(), 2):
            ties.append(row[g] * np.eye(groups)[g] - row[h] * np.eye(groups)[h])
    dearest = 0.0
    for corner in itertools.combinations(ties, groups - 1):
        system = np.array([*corner, counts.astype(float)])
        if abs(np.linalg.det(system)) < 1e-12:
            continue
        prices = np.linalg.solve(system, np.eye(groups)[-1])
        if (prices > -1e-9).all():
            costs = np.where(np.isfinite(seconds), seconds, 0.0) * prices
            costs[~np.isfinite(seconds)] = np.inf
            dearest = max(dearest, float(costs[np.isfinite(seconds).any(axis=1)].min(axis=1).sum()))
    return dearest


def print_classes(scenario: Scenario, workload: Workload) -> None:
    for index, slo_class in enumerate(scenario.slo_classes):
        share = np.count_nonzero(workload.slo_class == index) / max(1, len(workload))
        print(f"{slo_class.name}: {share:.3f} of the requests")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
