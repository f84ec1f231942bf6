"""How fast an instance really is: uncertainty shrinks where observations agree, and only there."""

import math

import numpy as np
import pytest

from qlm.rct_estimator.correction import MODEL_LOG_SD, Correction


def after(ratios: list[float]) -> Correction:
    correction = Correction()
    for ratio in ratios:
        correction = correction.observed(10.0, 10.0 * ratio)
    return correction


def test_uncertainty_shrinks_to_that_of_the_model_where_observations_agree() -> None:
    ratios = np.random.default_rng(1).lognormal(math.log(1.05), 0.02, 40).tolist()
    assert after(ratios).factor == pytest.approx(1.05, rel=0.01)
    assert MODEL_LOG_SD < after(ratios[:20]).uncertainty < 0.03
    assert after(ratios).uncertainty < 0.022


def test_uncertainty_remains_where_observations_disagree() -> None:
    rng = np.random.default_rng(2)
    near = after(rng.lognormal(0, 0.02, 40).tolist())
    far = after(rng.lognormal(0, 0.3, 40).tolist())
    assert far.uncertainty > 1.5 * near.uncertainty


def test_intervals_cover_the_true_factor() -> None:
    rng = np.random.default_rng(3)
    truth = rng.normal(0, 0.1, 300)
    learned = [after(rng.lognormal(log, 0.1, 12).tolist()) for log in truth]
    inside = [abs(c.log_ratio - log) <= 1.645 * c.uncertainty for c, log in zip(learned, truth, strict=True)]
    assert 0.85 <= float(np.mean(inside)) <= 0.99


def test_an_instance_that_becomes_slow_is_followed() -> None:
    steady = [1.0] * 60
    assert after(steady + [1.5] * 30).factor == pytest.approx(1.5, rel=0.05)
    assert after([*steady, 1.5]).factor < 1.05
