"""What sleeps on an instance, as bits where all models fit into host memory: costs are those of the rule."""

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


@pytest.mark.parametrize("seed", range(8))
def test_bits_cost_what_the_rule_of_host_memory_costs(seed: int) -> None:
    problem = medium(seed, 40)
    data, queues, cost = searched(problem, by_rule=False)
    _, by_rule, cost_by_rule = searched(problem, by_rule=True)
    assert queues == by_rule
    assert cost == cost_by_rule
    if len(data.unload[0]) <= 4:
        assert data.fits.all(), "512 GB hold four models of at most 60 GB"


def test_some_problems_have_models_that_do_not_fit_together() -> None:
    fits = [make_data(problem_arrays(medium(seed, 40))).fits.all() for seed in range(8)]
    assert True in fits
