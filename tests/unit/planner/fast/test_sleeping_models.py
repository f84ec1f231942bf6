"""What sleeps on an instance, as bits where all models fit into host memory: costs are those of the rule."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.planner_problems import medium
from qlm.planner.arrays import problem_arrays
from qlm.planner.fast.data import Data, make_data
from qlm.planner.fast.initial import Workspace, as_lists, insertion_plan
from qlm.planner.fast.queues import true_cost
from qlm.planner.fast.search import anneal
from qlm.planner.fast.settings import Neighborhood
from qlm.planner.problem import Problem


def searched(problem: Problem, *, by_rule: bool) -> tuple[Data, object, tuple[float, ...]]:
    """Insert and anneal; the queues, and what they cost."""
    arrays = problem_arrays(problem)
    data = make_data(arrays)
    known = data.fits
    if by_rule:
        data = data._replace(fits=np.zeros_like(data.fits))
    workspace = Workspace(arrays, data)
    queues = insertion_plan(arrays, data, workspace, np.flatnonzero(arrays.placeable))
    assert queues is not None
    random = np.array([7], dtype=np.int64)
    anneal(data, queues, workspace.candidates, random, Neighborhood(), 20_000, 50.0, 0.5)
    return data._replace(fits=known), as_lists(queues), true_cost(data, queues)


def drawn(seed: int) -> Problem:
    """Draw a problem; with odd seeds, the host memory of the first kind holds its largest model only."""
    problem = medium(seed, 40)
    if seed % 2 == 0:
        return problem
    name, kind = next(iter(problem.kinds.items()))
    largest = max(model.weights_bytes for model in kind.models.values())
    return replace(problem, kinds={**problem.kinds, name: replace(kind, host_memory_bytes=largest)})


SEEDS = range(8)


@pytest.mark.parametrize("seed", SEEDS)
def test_bits_cost_what_the_rule_of_host_memory_costs(seed: int) -> None:
    problem = drawn(seed)
    _, queues, cost = searched(problem, by_rule=False)
    _, by_rule, cost_by_rule = searched(problem, by_rule=True)
    assert queues == by_rule
    assert cost == cost_by_rule


def test_bits_are_used_for_the_kinds_whose_host_memory_holds_all_their_models() -> None:
    found = {
        (len(problem.kinds) > 1, bool(fits))
        for problem in map(drawn, SEEDS)
        for fits in make_data(problem_arrays(problem)).fits
    }
    assert found == {(several, fits) for several in (True, False) for fits in (True, False)}
    for problem in map(drawn, SEEDS):
        holds = [
            sum(model.weights_bytes for model in kind.models.values()) <= kind.host_memory_bytes
            for kind in problem.kinds.values()
        ]
        assert make_data(problem_arrays(problem)).fits.tolist() == holds
