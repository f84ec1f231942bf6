"""Errors of forecasts: what they assume, what they learn, and the intervals they give."""

import numpy as np
import pytest

from qlm.controller.core.expected.priors import ENDS, WAITS
from qlm.rct_estimator.forecast_errors import (
    ALONE_MIN,
    HORIZONS_S,
    PRIOR_SHARES,
    ForecastErrors,
    Turn,
    inside,
)
from qlm.rct_estimator.normal import Normal

AT_20_S = Normal(20.0, 1.0)


def taught(errors: ForecastErrors, actual_s: np.ndarray, turn: Turn = Turn.SWAP) -> ForecastErrors:
    for each in actual_s:
        errors = errors.after(turn, 20.0, float(each))
    return errors


@pytest.mark.parametrize("prior", [WAITS, ENDS])
def test_each_turn_and_horizon_has_ascending_quantiles(prior: object) -> None:
    quantiles = np.array(prior)
    assert quantiles.shape == (len(Turn), len(HORIZONS_S) + 1, len(PRIOR_SHARES))
    assert np.all(np.diff(quantiles, axis=2) >= 0)


@pytest.mark.parametrize("factor", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("spread", [0.2, 1.0])
def test_nine_tenths_of_what_comes_are_inside_once_the_like_of_it_was_seen(
    factor: float, spread: float
) -> None:
    random = np.random.default_rng(7)
    outcomes = 20.0 * factor * random.lognormal(0.0, spread, 600)
    corrected = taught(ForecastErrors.of(WAITS), outcomes[:300]).corrected(Turn.SWAP, AT_20_S)
    assert corrected.mean == pytest.approx(20.0 * factor, rel=0.25), "the median outcome"
    share = np.mean([inside(corrected, each) for each in outcomes[300:]])
    assert 0.85 <= share <= 0.97


def test_what_changes_is_followed_and_what_was_fades() -> None:
    random = np.random.default_rng(3)
    before = taught(ForecastErrors.of(WAITS), random.normal(20.0, 1.0, 300))
    after = taught(before, random.normal(60.0, 3.0, 300))
    assert before.corrected(Turn.SWAP, AT_20_S).mean == pytest.approx(20.0, rel=0.15)
    assert after.corrected(Turn.SWAP, AT_20_S).mean == pytest.approx(60.0, rel=0.15)


def test_a_horizon_and_a_turn_learn_for_themselves() -> None:
    errors = ForecastErrors.of(WAITS)
    late = taught(errors, np.full(50, 100.0))
    for turn, forecast_s in ((Turn.AWAKE, 20.0), (Turn.SWAP, 200.0)):
        forecast = Normal(forecast_s)
        assert late.corrected(turn, forecast) == errors.corrected(turn, forecast)
    assert late.corrected(Turn.SWAP, AT_20_S).mean > errors.corrected(Turn.SWAP, AT_20_S).mean


def test_nothing_is_assumed_of_groups_that_wait_for_no_other_model() -> None:
    errors = ForecastErrors.of(WAITS)
    assert errors.corrected(Turn.ALONE, AT_20_S) == AT_20_S
    few, many = np.full(int(ALONE_MIN) - 1, 40.0), np.full(40, 40.0)
    assert taught(errors, few, Turn.ALONE).corrected(Turn.ALONE, AT_20_S) == AT_20_S
    assert taught(errors, many, Turn.ALONE).corrected(Turn.ALONE, AT_20_S).mean > 25.0


def test_an_interval_is_never_narrower_than_the_forecast() -> None:
    exact = taught(ForecastErrors.of(WAITS), np.full(400, 20.0))
    assert exact.corrected(Turn.SWAP, Normal(20.0, 900.0)).var >= 900.0


def test_what_is_learned_loses_weight() -> None:
    late = taught(ForecastErrors.of(WAITS), np.full(50, 150.0))
    kept = [late.faded(weight).corrected(Turn.SWAP, AT_20_S).mean for weight in (1.0, 0.1, 0.0)]
    assert kept == sorted(kept, reverse=True)
    assert kept[-1] == ForecastErrors.of(WAITS).corrected(Turn.SWAP, AT_20_S).mean
