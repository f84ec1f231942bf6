"""Planner and estimator agree about the uncertainty of a wait behind many groups of a class."""

import math
import random

import pytest

from benchmarks.motion.variance import estimator_wait, form_after, planner_wait


@pytest.mark.parametrize("answers", [20, 1000])
@pytest.mark.parametrize("groups", [1, 4, 16])
def test_planner_and_estimator_agree_about_the_uncertainty_of_a_wait(answers: int, groups: int) -> None:
    form = form_after(answers, random.Random(1))
    requests = round(4 * form.entry.on_kind.state.batch)
    planned, estimated = planner_wait(form, requests, groups), estimator_wait(form, requests, groups)
    assert planned.mean == pytest.approx(estimated.mean, rel=0.01)
    assert math.sqrt(planned.var) == pytest.approx(math.sqrt(estimated.var), rel=0.1)
