"""Expected times of single requests, against those of their group."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.errors import InvalidValueError
from qlm.planner.verify.problem_index import ProblemIndex
from qlm.planner.verify.referee import verify
from qlm.planner.verify.request_times import request_times
from support.plans import random_plan, random_problem


@given(st.integers(0, 10_000))
def test_the_requests_of_a_group_are_together_what_the_group_is(seed: int) -> None:
    problem = random_problem(seed, groups=5, instances=2)
    places = ProblemIndex.of(problem)
    for row in verify(problem, random_plan(problem, seed)).rows:
        turns = [request_times(places, row, nth, row.deadline_s) for nth in range(1, row.requests + 1)]
        assert turns[-1].answered == row.completion
        starts_s = [row.start.mean, *(each.starts.mean for each in turns)]
        assert starts_s == sorted(starts_s)
        met = [each.p_met for each in turns if each.p_met is not None]
        assert len(met) == (0 if row.deadline_s is None else row.requests)
        if met:
            assert math.fsum(met) / row.requests == pytest.approx(row.p_met, abs=1e-9)
            assert 1 - met[-1] == pytest.approx(row.p_last_late, abs=1e-9)


def test_a_request_that_the_group_does_not_have_has_no_turn() -> None:
    problem = random_problem(1)
    row = verify(problem, random_plan(problem, 1)).rows[0]
    for nth in (0, row.requests + 1):
        with pytest.raises(InvalidValueError, match=f"nth is {nth}; expected a request of the group"):
            request_times(ProblemIndex.of(problem), row, nth, None)
